"""Formats of published checkpoints.

A module that reads one has `prefix(shapes)`, which returns the prefix of all
names, or None for other formats; `infer(shapes, config, grid)`, which returns
the `Architecture` that the arrays' shapes, config.json and the user's grid of
patches tell, or raises ValueError for an invalid or unsupported one; and
`rules(vit, shapes)`, for arrays to read, or without shapes for those to write.
`unused(shapes)` may name arrays to leave out.
"""
