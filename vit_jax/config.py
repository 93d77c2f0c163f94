"""Exports `base_config`, from which every configuration file starts.

`vit_jax.run.settings` defines the keys, their defaults and their meaning.
"""

from vit_jax.run.settings import base_config

__all__ = ["base_config"]
