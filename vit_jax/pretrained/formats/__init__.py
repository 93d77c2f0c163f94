"""Reads and writes the checkpoint formats of other libraries."""
