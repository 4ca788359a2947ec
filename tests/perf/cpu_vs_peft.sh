#!/usr/bin/env bash
# Decode of 16 rows: ours beside transformers + PEFT on the same two cores, in one run.
#
# usage: tests/perf/cpu_vs_peft.sh LORA_BENCH MODEL_DIR OUT_DIR [extra options of both, e.g. --dummy]
# Needs python3 with torch, transformers and peft. Runs alternate, twice; everything is kept in
# OUT_DIR/{ours,peft}-*.json and the ratios are printed.
set -euo pipefail
bench=${1:?lora-bench} model=${2:?model directory} out=${3:?output directory}
shift 3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
demo=$here/../../deploy/demo/adapters
cores=${CORES:-0,1}
adapters=("$demo"/pirate "$demo"/json "$demo"/newsreader "$demo"/sherlock "$demo"/haiku "$demo"/emoji)
ours=()
for a in "${adapters[@]}"; do ours+=(--adapter "$a"); done
mkdir -p "$out"
for round in 1 2; do
  for dtype in f32 bf16; do
    taskset -c "$cores" "$bench" --out "$out/ours-$dtype-$round.json" step --model "$model" \
      "${ours[@]}" --rows 16 --context 128 --steps 32 --rounds 3 --dtype "$dtype" "$@" >/dev/null
    CUDA_VISIBLE_DEVICES='' taskset -c "$cores" python3 "$here/peft_baseline.py" --model "$model" \
      --adapters "${adapters[@]}" --rows 16 --context 128 --steps 32 --rounds 3 --dtype "$dtype" \
      "$@" >"$out/peft-$dtype-$round.json"
  done
done
python3 - "$out" "${COMMIT:-unknown}" <<'PY'
import json, sys
from datetime import date

out, commit = sys.argv[1:]
entries = []


def keep(case, value, unit, better="lower", goal=None, bound=None):
    entry = {"case": case, "value": round(value, 3), "better": better, "unit": unit}
    if goal:
        entry |= {"goal": goal, "bound": bound}
    entries.append(entry)


for round_ in (1, 2):
    peers = {d: json.load(open(f"{out}/peft-{d}-{round_}.json")) for d in ("f32", "bf16")}
    best = min(p["mixed"]["median_ms"] for p in peers.values())
    for dtype, peer in peers.items():
        keep(f"PEFT {dtype}, base rows, round {round_}", peer["base"]["median_ms"], "ms")
        keep(f"PEFT {dtype}, 8 adapters, round {round_}", peer["mixed"]["median_ms"], "ms")
    for dtype in ("f32", "bf16"):
        ours = {e["case"]: e["value"] for e in json.load(open(f"{out}/ours-{dtype}-{round_}.json"))}
        base = next(v for k, v in ours.items() if k.endswith("base, median"))
        mixed = next(v for k, v in ours.items() if "adapters=" in k and k.endswith(", median"))
        name = f"{dtype} weights, round {round_}"
        keep(f"ours, base rows, {name}", base, "ms")
        keep(f"ours, 8 adapters, {name}", mixed, "ms")
        keep(f"8 adapters over base rows, {name}", mixed / base, "ratio", "lower", "cpu lora", 1.2)
        keep(f"best PEFT over ours, {name}", best / mixed, "ratio", "higher", "cpu peft", 2.0)
common = {
    "machine": "2 cores (taskset) of an H200 host's Xeon",
    "date": date.today().isoformat(),
    "commit": commit,
    "command": "tests/perf/cpu_vs_peft.sh lora-bench MODEL OUT --dummy (16 rows, context 128)",
}
with open(f"{out}/cpu-vs-peft.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(e | common) for e in entries) + "\n]\n")
for e in entries:
    print(f"{e['case']:55} {e['value']:9} {e['unit']}")
PY
