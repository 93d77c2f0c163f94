"""The tasks: a class, several labels, numbers, or hidden patches."""
