#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU VM slice.
#
#   scripts/launch_tpu_vm.sh TPU_NAME ZONE gs://my-bucket/vit_jax.tar.gz \
#     --config configs/pretrain.py:B/16,imagenet2012 --workdir gs://my-bucket/b16
#
# Assumes that the slice exists (`gcloud compute tpus tpu-vm create`), that
# gcloud is logged in here, that the hosts have Python 3.11 to 3.13, and that
# all of them can reach the workdir and the data, for instance at gs:// paths.
# It puts this checkout's last commit into the archive, which every host unpacks
# and installs once. If you start it again, the run resumes where it was.
set -euo pipefail

if [ $# -lt 4 ]; then
  sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
tpu="$1" zone="$2" archive="$3"
shift 3
commit="$(git rev-parse --short HEAD)"
git archive --format=tar.gz --prefix="vit_jax/" HEAD |
  gcloud storage cp - "$archive"

# Quoted again, since another shell reads it on the hosts.
arguments="$(printf '%q ' "$@")"
gcloud compute tpus tpu-vm ssh "$tpu" --zone "$zone" --worker=all --command "
set -e
mkdir -p ~/vit_jax-$commit && cd ~/vit_jax-$commit
if [ ! -e .installed ]; then
  gcloud storage cat $(printf '%q' "$archive") | tar xz --strip-components=1
  python3 -m venv .venv
  .venv/bin/pip install -q -c constraints.txt -e '.[tpu,gcs]'
  touch .installed
fi
exec .venv/bin/python -m vit_jax.train $arguments"
