"""ONNX files: a JAX program as a graph that ONNX Runtime runs."""
