"""Packs images of any kind of source into shards that a pod reads quickly."""
