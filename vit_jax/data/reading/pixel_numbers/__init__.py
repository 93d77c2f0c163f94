"""Reads the number of each pixel: depth, height, density."""
