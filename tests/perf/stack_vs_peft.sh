#!/usr/bin/env bash
# Decode of 16 concurrent gRPC streams through coordinator and one worker of a real model, beside
# transformers + PEFT on the same two cores, in one run.
#
# usage: tests/perf/stack_vs_peft.sh BIN_DIR MODEL_DIR OUT_DIR
# BIN_DIR holds lora-coordinator, lora-worker, loractl and lora-bench: build/release/bin, or bin/ of an
# unpacked deploy/bundle.sh archive. Needs mpirun, and python3 (or $PYTHON) with torch, transformers
# and peft; no network. Runs alternate, $ROUNDS times (2) on $CORES (0,1), each of $INNER_ROUNDS (5)
# base and adapter rounds in turn of $TOKENS (40) after prompts of $PROMPT_TOKENS (128), in $STREAMS
# (16) streams; the servers run only while they are measured. Everything is kept in
# OUT_DIR/{ours,peft}-*.json and the ratios are printed.
set -euo pipefail
bin=$(realpath "${1:?folder of the binaries}")
model=$(realpath "${2:?model directory}")
out=${3:?output directory}
mkdir -p "$out" && out=$(realpath "$out")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cores=${CORES:-0,1} rounds=${ROUNDS:-2} inner=${INNER_ROUNDS:-5} python=${PYTHON:-python3} base=base
streams=${STREAMS:-16} prompt=${PROMPT_TOKENS:-128} tokens=${TOKENS:-40}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 CUDA_VISIBLE_DEVICES=
pinned=(taskset -c "$cores")
scratch=$(mktemp -d)
coordinator="" worker=""

stop() {
  [ -z "$worker" ] || kill -USR1 "$worker" 2>/dev/null || true # drains the group
  [ -z "$worker" ] || wait "$worker" || true
  [ -z "$coordinator" ] || kill -TERM "$coordinator" 2>/dev/null || true
  [ -z "$coordinator" ] || wait "$coordinator" || true
  coordinator="" worker=""
}
trap 'stop; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# wait_for WHAT COMMAND...: up to two minutes.
wait_for() {
  local what=$1 tries=0
  shift
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ $tries -gt 600 ]; then
      tail -n 20 "$out"/*.log >&2
      echo "$what took too long" >&2
      exit 1
    fi
    sleep 0.2
  done
}

address() { printf '127.0.0.1:%s' "$(sed -n 's/^grpc[ =:]*//p' "$scratch/ports")"; }
ctl() { "$bin/loractl" --address "$(address)" "$@"; }
group_ready() { ctl status --json | grep -q '"state": *"ready"'; }

# start DTYPE: coordinator, one worker of all $cores, the eight adapters.
start() {
  local name
  rm -rf "$scratch/ports" "$scratch/data"
  "${pinned[@]}" "$bin/lora-coordinator" --listen 127.0.0.1:0 --metrics-port 0 \
    --port-file "$scratch/ports" --data "$scratch/data" --model "$model" \
    --served-model-name "$base" --adapter-root "$scratch/adapters" >"$out/coordinator.log" 2>&1 &
  coordinator=$!
  wait_for "the coordinator's start" test -s "$scratch/ports"
  "${pinned[@]}" mpirun -np 1 --bind-to none "$bin/lora-worker" --coordinator "$(address)" \
    --model "$model" --device cpu --dtype "$1" --metrics-port 0 --cache-dir "$scratch/cache" \
    --port-file "$scratch/worker.ports" >"$out/worker.log" 2>&1 &
  worker=$!
  wait_for "loading the model" group_ready
  for name in "${names[@]}"; do ctl adapter add "$name" "$scratch/adapters/$name" >/dev/null; done
}

# Six demo adapters, and two of them again as other content: the last number differs in its last bit.
names=(pirate json newsreader sherlock haiku emoji pirate2 json2)
mkdir -p "$scratch/adapters"
for name in "${names[@]}"; do
  cp -r "$here/../../deploy/demo/adapters/${name%2}" "$scratch/adapters/$name"
done
for name in pirate2 json2; do
  "$python" - "$scratch/adapters/$name/adapter_model.safetensors" <<'PY'
import sys

with open(sys.argv[1], "r+b") as file:  # bf16, little-endian
    file.seek(-2, 2)
    low = file.read(1)[0]
    file.seek(-2, 2)
    file.write(bytes([low ^ 1]))
PY
done

flags=() paths=()
for name in "${names[@]}"; do flags+=(--name "$name") paths+=("$scratch/adapters/$name"); done
for round in $(seq "$rounds"); do
  for dtype in bf16 f32; do
    echo "round $round of $rounds, $dtype" >&2
    start "$dtype"
    "${pinned[@]}" "$bin/lora-bench" streams --out "$out/ours-$dtype-$round.json" \
      --commit "${COMMIT:-unknown}" --address "$(address)" --base "$base" "${flags[@]}" \
      --streams "$streams" --prompt-tokens "$prompt" --max-tokens "$tokens" --rounds "$inner" \
      >/dev/null
    stop
    "${pinned[@]}" "$python" "$here/peft_baseline.py" --model "$model" --adapters "${paths[@]}" \
      --rows "$streams" --context "$prompt" --steps "$tokens" --rounds "$inner" --dtype "$dtype" \
      >"$out/peft-$dtype-$round.json"
  done
done
"$python" "$here/stack_report.py" "$out" "$rounds" "$cores" "${COMMIT:-unknown}"
