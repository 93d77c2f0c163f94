"""Sphinx's configuration for this site, which `make docs` builds offline.

Beside this file, `source_pages`, `config_tables` and `csv_tables` make pages
and tables from the code and from files of CSV; `moved` knows old addresses.
"""

import os
import pathlib
import sys
import tomllib

# Importing the package must not take an accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
_ROOT = pathlib.Path(__file__).parent.parent
# The first folder has the extensions, the second one `vit_jax`.
sys.path[:0] = [str(_ROOT / "docs"), str(_ROOT)]

import source_pages  # noqa: E402  # In this folder.

_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

project = _PROJECT["name"]
version = release = _PROJECT["version"]
extensions = [
  "myst_parser",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.linkcode",
  "config_tables",
  "csv_tables",
  "docstrings",
  "moved",
  "source_pages",
]
linkcode_resolve = source_pages.linkcode_resolve

exclude_patterns = ["package.md"]  # Shown by a package index instead.

html_theme = "furo"
html_title = f"vit_jax {version}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["home.css", "site.css"]
html_js_files = ["copy.js"]

# Make headings link targets, as code hosts do.
myst_heading_anchors = 3
# Keep the two hyphens in front of a flag.
smartquotes = False
# `x` in a docstring becomes a link if x is documented, and code otherwise.
default_role = "py:obj"

autodoc_default_options = {
  "members": True,
  "special-members": "__call__",
  # Fields shown as "alias of float32", and what Flax adds to a dataclass.
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
napoleon_attr_annotations = False  # They are in the signatures.
toc_object_entries_show_parents = "hide"
