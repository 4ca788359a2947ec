#!/usr/bin/env bash
# The whole path on one GPU (DEVICE=cpu: on the host): coordinator, lora-worker with random weights
# of a config.json, concurrent streams for the base and for adapters through gRPC. With NUM_PAGES,
# which adapters and requests must exceed, first tokens of single requests instead.
#
# usage: tests/perf/gpu_stack.sh BIN_DIR MODEL_DIR OUT_DIR
#   ADAPTERS="8 64" LORA_RANK=16 STREAMS=64 PROMPT_TOKENS=1024 TOKENS=128 ROUNDS=2 PYTHON=python3
#   DEVICE=cuda NUM_PAGES=0
set -euo pipefail
bin=${1:?folder of the binaries} model=${2:?folder with config.json} out=${3:?output folder}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
adapters=${ADAPTERS:-8 64}
most=$(tr ' ' '\n' <<<"$adapters" | sort -n | tail -n 1)
streams=${STREAMS:-64} prompt=${PROMPT_TOKENS:-1024} tokens=${TOKENS:-128}
pages=${NUM_PAGES:-0}
scratch=$(mktemp -d)
mkdir -p "$out"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
coordinator="" worker=""
stop() {
  [ -z "$worker" ] || kill -USR1 "$worker" 2>/dev/null || true
  [ -z "$worker" ] || wait "$worker" || true
  [ -z "$coordinator" ] || kill "$coordinator" 2>/dev/null || true
  rm -rf "$scratch"
}
trap stop EXIT

# wait_for SECONDS COMMAND...
wait_for() {
  local until=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $until ] || { tail -n 20 "$out"/*.log >&2 && exit 1; }
    sleep 0.1
  done
}
address() { printf '127.0.0.1:%s' "$(sed -n 's/^grpc[ =:]*//p' "$scratch/ports")"; }
ctl() { "$bin/loractl" --address "$(address)" "$@"; }
group_ready() { ctl status --json | grep -q '"state": *"ready"'; }

"${PYTHON:-python3}" "$here/make_adapters.py" "$model" "$scratch/adapters" --count "$most" \
  --rank "${LORA_RANK:-16}"
"$bin/lora-coordinator" --listen 127.0.0.1:0 --metrics-port 0 --port-file "$scratch/ports" \
  --data "$scratch/data" --model "$model" --served-model-name base \
  --adapter-root "$scratch/adapters" --max-model-len $((prompt + tokens + 16)) \
  --max-num-seqs "$streams" >"$out/coordinator.log" 2>&1 &
coordinator=$!
wait_for 20 test -s "$scratch/ports"
began=$(date +%s.%N)
mpirun -np 1 --bind-to none "$bin/lora-worker" --coordinator "$(address)" --model "$model" \
  --device "${DEVICE:-cuda}" --load-format dummy --num-pages "$pages" --metrics-port 0 --cache-dir "$scratch/cache" \
  --port-file "$scratch/worker.ports" >"$out/worker.log" 2>&1 &
worker=$!
wait_for 120 group_ready
ready=$(date +%s.%N)
"$bin/lora-bench" streams --address "$(address)" --base base --name base --streams 1 \
  --prompt-tokens 8 --max-tokens 4 --rounds 1 >/dev/null || true
first=$(date +%s.%N)
"${PYTHON:-python3}" -c "print(f'worker start to ready {$ready - $began:.2f} s, to the first tokens {$first - $began:.2f} s')" |
  tee "$out/start.txt"
added=0
for count in $adapters; do
  began=$(date +%s)
  seq "$added" $((count - 1)) | xargs -r -P 8 -I{} "$bin/loractl" --address "$(address)" \
    adapter add "a{}" "$scratch/adapters/a{}" >/dev/null
  echo "$((count - added)) adapters added in $(($(date +%s) - began)) s"
  added=$count
  names=()
  for i in $(seq 0 $((count - 1))); do names+=(--name "a$i"); done
  what=(streams --streams "$streams" --max-tokens "$tokens")
  [ "$pages" -eq 0 ] || what=(first-token)
  "$bin/lora-bench" "${what[@]}" --address "$(address)" --base base "${names[@]}" \
    --prompt-tokens "$prompt" --rounds "${ROUNDS:-2}" --out "$out/gpu-stack-$count.json" >/dev/null
  "${PYTHON:-python3}" -c 'import json, sys
for e in json.load(open(sys.argv[1])):
    print(e["case"], round(e["value"], 4), e["unit"], flush=True)' "$out/gpu-stack-$count.json"
done
port=$(sed -n 's/^metrics //p' "$scratch/worker.ports")
"${PYTHON:-python3}" - "$port" "$out/worker.metrics" <<'PYTHON'
import sys
import urllib.request

text = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read()
open(sys.argv[2], "wb").write(text)
PYTHON
"${PYTHON:-python3}" - "$out" $adapters <<'PYTHON'
import json
import sys

out, counts = sys.argv[1], sys.argv[2:]
entries = [e for n in counts for e in json.load(open(f"{out}/gpu-stack-{n}.json"))]
with open(f"{out}/gpu-stack.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(e) for e in entries) + "\n]\n")
PYTHON
port=$(sed -n 's/^metrics //p' "$scratch/ports")
[ -z "$port" ] || "${PYTHON:-python3}" - "$port" "$out/coordinator.metrics" <<'PYTHON'
import sys
import urllib.request

text = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read().decode()
open(sys.argv[2], "w").write(text)
for line in text.splitlines():
    if line.startswith(("rootstock_adapter_evictions_total", "rootstock_adapter_loads_total")):
        print(line)
PYTHON
