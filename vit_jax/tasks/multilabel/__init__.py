"""Multi-label classification: an image has any number of labels."""
