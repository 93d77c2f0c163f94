"""Masked patch prediction, trained without labels."""
