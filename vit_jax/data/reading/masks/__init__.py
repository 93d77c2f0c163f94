"""Reads masks: pictures of the class of each pixel."""
