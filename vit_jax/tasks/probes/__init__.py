"""Probes of a frozen model's representations: classes, pixels, label errors."""

PROBES = ("few_shot", "knn", "linear")
