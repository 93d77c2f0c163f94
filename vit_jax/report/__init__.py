"""The HTML pages of vit_jax report, on runs, and of vit_jax similar."""
