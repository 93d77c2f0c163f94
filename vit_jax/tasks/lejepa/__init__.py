"""LeJEPA: the crops of an image predict the mean of its large ones."""
