"""Exports what configuration files start from.

`base_config` has every key with its default, which `vit_jax.run.settings`
defines; `load_config` gives the configuration of another file, as in
`load_config("finetune:b16_i21k,cifar10")`.
"""

from vit_jax.run.config_file import load_config
from vit_jax.run.settings import base_config

__all__ = ["base_config", "load_config"]
