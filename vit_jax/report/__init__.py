"""The HTML report on finished runs: python -m vit_jax.report."""
