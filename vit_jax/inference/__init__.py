"""Predictions and features of image files."""
