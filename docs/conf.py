"""How Sphinx builds this site: `make docs`, into build/docs, with no network.

What is made of the code at build time is in `source_pages` and
`config_tables`, beside this file.
"""

import os
import pathlib
import sys
import tomllib

# Importing the package must not take an accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
_ROOT = pathlib.Path(__file__).parent.parent
# Of this folder the extensions, of the other one `vit_jax`.
sys.path[:0] = [str(_ROOT / "docs"), str(_ROOT)]

import source_pages  # noqa: E402  # Of this folder.

_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

project = _PROJECT["name"]
version = release = _PROJECT["version"]
extensions = [
  "myst_parser",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.linkcode",
  "config_tables",
  "docstrings",
  "source_pages",
]
linkcode_resolve = source_pages.linkcode_resolve

html_theme = "furo"
html_title = "vit_jax"
html_copy_source = False
html_show_copyright = False

# Headings are targets, as on a code host.
myst_heading_anchors = 3
# Two hyphens in front of a flag are no dash.
smartquotes = False
# `x` in a docstring is a link where x is documented, and code elsewhere.
default_role = "py:obj"

autodoc_default_options = {
  "members": True,
  "special-members": "__call__",
  # Fields that say "alias of float32", and what Flax adds to a dataclass.
  "exclude-members": "dtype,param_dtype,replace",
}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 72
python_use_unqualified_type_names = True
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # Signatures have them.
toc_object_entries_show_parents = "hide"
