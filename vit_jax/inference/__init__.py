"""Predictions and features of image files."""

# Names that --help of a command shows, without loading JAX.
PLATFORMS = ("cpu", "cuda", "tpu")
KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
DTYPES = ("float32", "bfloat16")
