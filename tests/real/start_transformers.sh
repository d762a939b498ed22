#!/usr/bin/env bash
# A real `transformers serve` 5.19 on the CPU, with the tiny model: start_transformers.sh PORT [more flags] ...
# In the foreground; SIGTERM stops it. Ready when GET /health answers 200. The model's name is its folder, model/tiny. 1.2 GB.
set -euo pipefail
port=$1; shift
here=$(cd "$(dirname "$0")" && pwd)
home=${REAL_SERVERS_HOME:-$here/../../.real-servers}
venv=$home/transformers
mkdir -p "$home/model"
home=$(cd "$home" && pwd -P)
if [ ! -f "$venv/ready" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
  "$venv/bin/pip" install -q --disable-pip-version-check 'transformers[serving]==5.19.0' accelerate requests
  touch "$venv/ready"
fi
[ -f "$home/model/tiny/model.safetensors" ] ||
  { "$venv/bin/python" "$here/make_model.py" "$home/model/new" && mv "$home/model/new" "$home/model/tiny"; }
mkdir -p "$home/cache/hub"  # GET /v1/models lists what lies in it, which is nothing; where it is not there the answer is a 500
export HF_HOME=$home/cache HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# without the limits --continuous-batching takes most of the machine's memory
exec "$venv/bin/transformers" serve "$home/model/tiny" --host 127.0.0.1 --port "$port" --device cpu --dtype bfloat16 \
  --cb-block-size 64 --cb-num-blocks 1024 --cb-max-batch-tokens 512 "$@"
