"""Dense regression: a number for each pixel."""
