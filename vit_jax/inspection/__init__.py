"""Attention maps, embedding maps and the figures that draw them."""
