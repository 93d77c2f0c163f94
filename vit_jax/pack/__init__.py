"""Packs images from wherever they lie into shards that a pod reads quickly."""

SUMS = "sha256sums.txt"  # The checksums of a packed folder's files.
