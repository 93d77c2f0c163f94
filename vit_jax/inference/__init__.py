"""Predictions, features and masks of image files, and exported programs."""

# Names that --help of a command shows, without loading JAX.
PLATFORMS = ("cpu", "cuda", "tpu")
KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
DTYPES = ("float32", "bfloat16")
