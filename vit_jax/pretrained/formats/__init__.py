"""Formats of published checkpoints.

A module that reads a format has these functions:

- `prefix(shapes)` returns the prefix of all names, or None for other formats;
- `infer(shapes, config, grid)` returns the `Architecture`, from the arrays'
  shapes, config.json and the user's grid of patches. It raises ValueError for
  an invalid or unsupported one;
- `rules(vit, shapes)` returns the rules for the arrays to read; without shapes,
  those for the arrays to write;
- `unused(shapes)`, if there is one, names the arrays to leave out;
- `with_colours(architecture, arrays)`, for an architecture that `normalizes`,
  reads the mean and the deviation that are among the arrays.

If a format has JSON files beside its weights, the module that writes it also
has `is_encoder`, `equivalent`, `reasons`, `not_kept` and `files`, and if needed
`stored`, `constants` and `keeps_proportions`; `pretrained.save` calls them.
"""
