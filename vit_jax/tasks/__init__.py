"""The tasks: a class, several labels, numbers, masks, or hidden patches."""
