"""Pairs of images and texts."""
