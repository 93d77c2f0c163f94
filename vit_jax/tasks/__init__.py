"""The tasks: a class, several labels, numbers, or masked patches."""
