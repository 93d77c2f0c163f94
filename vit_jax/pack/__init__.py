"""Packs images from wherever they lie into shards that a pod reads quickly."""
