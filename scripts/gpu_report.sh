#!/usr/bin/env bash
# Measures vit_jax on an NVIDIA GPU, and writes docs/gpu.md as it goes:
#
#   scripts/gpu_report.sh [OPTIONS] [--config.KEY=VALUE ...]
#
# Parts take at most 8 minutes each. A finished part is kept in runs/gpu_report/,
# so after a kill the same command goes on, until it says "all parts done".
# Options are those of bench/gpu_report.py (--help lists them); --config.*
# goes to the CIFAR-10 run, as in --config.data.data_dir=FOLDER. $PYTHON is
# python3 by default, and needs JAX for CUDA.
#
# It needs no network. If this checkout has a folder wheels/, all of it is first
# installed below runs/gpu_report/: put in there what the machine lacks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
packages=runs/gpu_report/packages
if compgen -G "wheels/*.whl" > /dev/null && [ ! -d "$packages" ]; then
  echo "installing wheels/ into $packages"
  rm -rf "$packages.part"
  "$python" -m pip install --quiet --no-index --no-deps \
    --target "$packages.part" wheels/*.whl
  mv "$packages.part" "$packages"
fi
export PYTHONPATH="$packages:$PWD${PYTHONPATH:+:$PYTHONPATH}"
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda}
# PyTorch takes its memory from the same card.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
exec "$python" -m scripts.bench.gpu_report "$@"
