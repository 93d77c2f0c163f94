"""The tasks: what a run learns to answer, with labels or without."""
