#!/usr/bin/env bash
# What a build does with exit statuses: five runs at once against HOST, each with the status that it must end with. The rules
# that decide are about errors: of times a client that other programs crowd out may say nothing, and then the status is 4.
#   ci.sh HOST FOLDER [NAME...]     (these runs only; PYTHON names the interpreter)
set -u
host=$1 folder=$2
shift 2
only=" $* "
run() {
  want=$1 name=$2
  shift 2
  case $only in "  " | *" $name "*) ;; *) return 0 ;; esac
  "${PYTHON:-python3}" -m locust_llm run --headless --host "$host" --no-probe -u 4 --request-count 40 \
    --synthetic-input-tokens-mean 50 --output-tokens-mean 5 --report-dir "$folder/$name" "$@" >"$folder/$name.out" 2>&1
  got=$?
  echo "$name: status $got, $([ "$got" = "$want" ] && echo "as it should be" || echo "should be $want")"
  [ "$got" = "$want" ]
}
run 0 passed --slo "error_rate < 20%" &
run 1 failed-requests --request-timeout 0.02 &
run 3 slo-failed --slo "ttft p50 < 1ms" --slo "error_rate > 80%" &
run 4 too-few-samples --slo "error_rate < 1%" &
run 5 bad-rule --slo "ttft p50 < 10" &
wrong=0
for job in $(jobs -p); do
  wait "$job" || wrong=1
done
exit $wrong
