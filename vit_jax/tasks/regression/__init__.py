"""Regression: an image has one or several numbers."""
