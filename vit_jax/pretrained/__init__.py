"""Weights of others, and ours for others: reading, adapting, writing."""
