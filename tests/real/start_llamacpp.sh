#!/usr/bin/env bash
# A real llama.cpp HTTP server (C++, from the package xllamacpp) on a tiny Llama with random weights, which it makes.
#   start_llamacpp.sh PORT [--slots 4] [--ctx-per-slot 16384] [--batch 2048] [--no-cache-prompt] ...
# In the foreground; SIGTERM stops it. Ready when GET /health answers 200. The model's name is "tiny".
set -euo pipefail
port=$1; shift
here=$(cd "$(dirname "$0")" && pwd)
home=${REAL_SERVERS_HOME:-$here/../../.real-servers}
venv=$home/llamacpp
mkdir -p "$home/model"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import xllamacpp, tokenizers, gguf' 2> /dev/null ||
  "$venv/bin/pip" install -q --disable-pip-version-check xllamacpp==2026.10.11549 gguf numpy tokenizers
[ -f "$home/model/tiny.gguf" ] ||  # made beside it first: a maker that was ended leaves no half of a model
  { "$venv/bin/python" "$here/make_model.py" "$home/model/new.gguf" && mv "$home/model/new.gguf" "$home/model/tiny.gguf"; }
exec "$venv/bin/python" "$here/serve_llamacpp.py" "$home/model/tiny.gguf" "$port" --alias tiny "$@"
