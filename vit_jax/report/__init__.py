"""The HTML report on finished runs: vit_jax report."""
