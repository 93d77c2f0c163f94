"""Reads data sets that TFDS, or `pack`, has prepared."""
