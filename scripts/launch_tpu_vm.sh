#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU VM slice.
#
#   scripts/launch_tpu_vm.sh TPU_NAME ZONE gs://my-bucket/vit_jax.tar.gz \
#     --config configs/pretrain.py:B/16,imagenet2012 --workdir gs://my-bucket/b16
#
# Assumes: a slice that exists (`gcloud compute tpus tpu-vm create`), gcloud
# logged in here, Python 3.11 to 3.13 on the hosts, and a workdir and data that
# all of them reach, such as gs:// paths. It puts this checkout's last commit
# into the archive that is named, which every host unpacks; a host that has it
# installed already only starts. Started again, the run goes on where it was.
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

# Quoted once more, since another shell reads it on the hosts.
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
