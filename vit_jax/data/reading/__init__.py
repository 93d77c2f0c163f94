"""Where images are read from: folders, label files, TFDS, packed, digits."""
