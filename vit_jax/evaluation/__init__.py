"""Evaluation of a whole split, confusion counts, and few-shot linear probes."""

PROBES = ("few_shot", "knn", "linear")
