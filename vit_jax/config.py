"""Home of `base_config`, which every configuration file imports from here.

`vit_jax.run.settings` has the keys, their defaults and their meaning.
"""

from vit_jax.run.settings import base_config

__all__ = ["base_config"]
