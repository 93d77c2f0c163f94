"""Estimates what a train step costs on TPUs, without having any."""

import os


def set_environment() -> None:
  """Prepares the environment for the TPU compiler, before JAX is imported.

  By default the compiler queries the metadata of the TPU machine that it
  expects to run on, and refuses to run twice at the same time.
  """
  os.environ["JAX_PLATFORMS"] = "cpu"
  os.environ["TPU_SKIP_MDS_QUERY"] = "1"
  os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
  os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
  os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
