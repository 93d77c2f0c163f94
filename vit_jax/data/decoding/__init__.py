"""How image files become pixels of 8 bits."""
