"""Compares training and logits with the references, step by step."""
