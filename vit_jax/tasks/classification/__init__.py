"""Classification: an image has one class."""
