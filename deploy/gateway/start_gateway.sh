#!/usr/bin/env bash
# start_gateway.sh nginx|haproxy|caddy|litellm PORT UPSTREAM[,UPSTREAM...] FOLDER
# Starts a gateway in the foreground with the configuration beside this script: it listens on PORT of 127.0.0.1 and forwards
# to these ports. It needs no root and writes into FOLDER alone. SIGTERM stops it. LITELLM names the program if it is not in PATH.
set -euo pipefail
gateway=$1 port=$2 upstreams=${3//,/ } folder=$4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
export HOME=$folder XDG_CONFIG_HOME=$folder XDG_DATA_HOME=$folder

# writes a configuration into the folder, with these ports; a line "server ..." comes once for each upstream
configure() {
  awk -v port="$port" -v upstreams="$upstreams" '
    { sub(/:8080/, ":" port) }
    /server .*127\.0\.0\.1:9000/ {
      count = split(upstreams, ports)
      for (i = 1; i <= count; i++) { line = $0; sub(/9000/, ports[i], line); sub(/server one/, "server number" i, line); print line }
      next
    }
    { addresses = "127.0.0.1:" upstreams; gsub(/ /, " 127.0.0.1:", addresses); sub(/127\.0\.0\.1:9000/, addresses); print }
  ' "$here/$1" > "$folder/$1"
}

case $gateway in
  nginx)
    configure nginx.conf
    exec nginx -p "$folder" -e stderr -c "$folder/nginx.conf" ;;
  haproxy)
    configure haproxy.cfg
    exec haproxy -db -f "$folder/haproxy.cfg" ;;
  caddy)
    configure Caddyfile
    exec caddy run --adapter caddyfile --config "$folder/Caddyfile" ;;
  litellm)
    [[ $upstreams != *" "* ]] || { echo "litellm: one upstream here" >&2; exit 2; }
    configure litellm.yaml
    # without a key it accepts every request: only for this machine
    [[ -n ${LITELLM_MASTER_KEY:-} ]] || export LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true
    export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_TELEMETRY=False DISABLE_ADMIN_UI=True NO_DOCS=True
    exec "${LITELLM:-litellm}" --config "$folder/litellm.yaml" --host 127.0.0.1 --port "$port" --num_workers 1 ;;
  *)
    echo "unknown gateway: $gateway" >&2; exit 2 ;;
esac
