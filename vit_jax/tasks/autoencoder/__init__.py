"""Masked autoencoders, trained without labels."""
