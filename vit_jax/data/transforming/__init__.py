"""How pixels are cropped, resized and augmented."""
