"""Reads and adapts published weights, and writes ours in their formats."""
