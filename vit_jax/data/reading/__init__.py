"""Where images and their labels are read from: folders, files, TFDS, digits."""
