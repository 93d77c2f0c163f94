#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU VM slice.
#
#   scripts/launch/tpu_vm.sh [OPTIONS] TPU_NAME ZONE gs://my-bucket/vit_jax.tar.gz \
#     --config configs/pretrain.py:B/16,imagenet2012 --workdir gs://my-bucket/b16 \
#     --config.data.data_dir=gs://my-bucket/tensorflow_datasets
#
# Options, before the name:
#   --project=PROJECT  the project, if it is not gcloud's default
#   --iap              connect through Identity-Aware Proxy (no public address)
#   --create=TYPE      ask for the slice as a queued resource, such as
#                      v5litepod-16, and wait; if it is taken away, ask again
#   --runtime=VERSION  the runtime of a slice to create
#   --spot             create a spot slice
#
# It puts this checkout's last commit into the archive, which every host unpacks
# and installs once, with a Python of its own. The run is a systemd service, so
# that a lost connection ends nothing: it logs to ~/vit_jax.log, and starts again
# after a crash, but not after exit codes 1, 2 and 3, which no restart mends.
# If you start the script again, the run resumes where it was. It needs gcloud,
# logged in, and a workdir and data that all hosts can reach.
set -eo pipefail  # Not -u: an empty array is unset to the Bash of macOS.

project=() ssh=() create=() type="" runtime=v2-alpha-tpuv5-lite
while [[ "${1:-}" == --* ]]; do
  case "$1" in
    --project=*) project=("$1") ;;
    --iap) ssh=(--tunnel-through-iap) ;;
    --create=*) type="${1#*=}" ;;
    --runtime=*) runtime="${1#*=}" ;;
    --spot) create=(--spot) ;;
    *) echo "$1 is no option; see the first lines of $0." >&2 && exit 2 ;;
  esac
  shift
done
if [ $# -lt 4 ]; then
  sed -n '2,24s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
tpu="$1" zone="$2" archive="$3"
shift 3
if [ -n "$(git status --porcelain)" ]; then
  echo "Only the last commit is launched; this checkout has other changes." >&2
fi
commit="$(git rev-parse --short HEAD)"

tpus() { gcloud compute tpus "$@" --zone "$zone" "${project[@]}"; }
on_hosts() {
  tpus tpu-vm ssh "$tpu" "${ssh[@]}" --worker="$1" --command "$2"
}
state() { tpus queued-resources describe "$tpu" --format='value(state.state)'; }

get_slice() {
  case "$(state 2> /dev/null)" in
    ACTIVE) return ;;
    SUSPEND* | FAILED) tpus queued-resources delete "$tpu" --force --quiet ;;
  esac
  tpus queued-resources create "$tpu" --node-id="$tpu" "${create[@]}" \
    --accelerator-type="$type" --runtime-version="$runtime" || true
  until [ "$(state)" = ACTIVE ]; do
    echo "$tpu is $(state); waiting."
    sleep "${POLL:-60}"
  done
}

# Quoted again, since another shell reads it on the hosts.
arguments="$(printf '%q ' "$@")"
start_run() {
  on_hosts all "
set -e
mkdir -p ~/vit_jax-$commit && cd ~/vit_jax-$commit
if [ ! -e .installed ]; then
  gcloud storage cat $(printf '%q' "$archive") | tar xz --strip-components=1
  python3 -m pip install -q --user uv  # The images have Python 3.10.
  python3 -m uv venv -q --python 3.12 .venv
  python3 -m uv pip install -q --python .venv/bin/python -c constraints.txt \
    -e '.[tpu,gcs,tfds]'
  .venv/bin/python -m vit_jax.train --help > /dev/null
  touch .installed
fi
sudo systemctl stop vit_jax 2> /dev/null || true
sudo systemd-run -q --collect --unit=vit_jax --uid=\$(id -u) \
  -p WorkingDirectory=\$PWD -p Restart=on-failure -p RestartSec=10 \
  -p 'RestartPreventExitStatus=1 2 3' -p TimeoutStopSec=120 -p KillMode=mixed \
  -p StandardOutput=append:\$HOME/vit_jax.log \
  -p StandardError=append:\$HOME/vit_jax.log \
  \$PWD/.venv/bin/python -m vit_jax.train $arguments"
}

git archive --format=tar.gz --prefix="vit_jax/" HEAD |
  gcloud storage cp "${project[@]}" - "$archive"
while true; do
  [ -z "$type" ] || get_slice
  start_run
  echo "The run has started. To watch it: gcloud compute tpus tpu-vm ssh $tpu" \
    "--zone $zone --worker=0 --command 'tail -f vit_jax.log'." \
    "To stop it: the same with --worker=all and 'sudo systemctl stop vit_jax'."
  [ -n "$type" ] || exit 0
  while [ "$(state)" = ACTIVE ]; do
    active="$(on_hosts 0 "systemctl is-active vit_jax || true")" || continue
    [ "$active" != inactive ] || exit 0
    sleep "${POLL:-60}"
  done
  echo "$tpu was taken away ($(state)); asking for another slice."
done
