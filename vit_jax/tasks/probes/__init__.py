"""Probes: images classified by the representations of a frozen model."""

PROBES = ("few_shot", "knn", "linear")
