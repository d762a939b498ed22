#!/usr/bin/env bash
# A real LiteLLM proxy 1.106 before another server: start_litellm.sh PORT BACKEND_URL
# In the foreground; SIGTERM stops it. Ready when GET /health/liveliness answers 200. Models: "tiny", and "dead", behind which
# nobody listens. The key of this instance is in LITELLM_MASTER_KEY, which whoever starts it must set.
set -euo pipefail
port=$1 backend=$2
here=$(cd "$(dirname "$0")" && pwd)
home=${REAL_SERVERS_HOME:-$here/../../.real-servers}
venv=$home/litellm
mkdir -p "$home"
if [ ! -f "$venv/ready" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check 'litellm[proxy]==1.106.2'
  touch "$venv/ready"
fi
cat > "$home/litellm-$port.yaml" <<YAML
model_list:
  - model_name: tiny
    litellm_params: {model: hosted_vllm/tiny, api_base: "$backend/v1", api_key: none}
  - model_name: dead
    litellm_params: {model: openai/tiny, api_base: "http://127.0.0.1:9/v1", api_key: none}
litellm_settings: {telemetry: false, num_retries: 0}
YAML
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_TELEMETRY=False DISABLE_ADMIN_UI=True NO_DOCS=True
exec "$venv/bin/litellm" --config "$home/litellm-$port.yaml" --host 127.0.0.1 --port "$port" --num_workers 1
