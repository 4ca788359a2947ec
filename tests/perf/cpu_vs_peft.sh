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
python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
for round_ in (1, 2):
    peer = min(
        (json.load(open(f"{out}/peft-{d}-{round_}.json")) for d in ("f32", "bf16")),
        key=lambda p: p["mixed"]["median_ms"],
    )
    for dtype in ("f32", "bf16"):
        ours = {e["case"]: e["value"] for e in json.load(open(f"{out}/ours-{dtype}-{round_}.json"))}
        base = next(v for k, v in ours.items() if k.endswith("base, median"))
        mixed = next(v for k, v in ours.items() if "adapters=" in k and k.endswith(", median"))
        print(
            f"round {round_}: ours {dtype} weights base {base:.1f} ms, 8 adapters {mixed:.1f} ms "
            f"(x{mixed / base:.3f}); PEFT (best: {peer['dtype']}) base {peer['base']['median_ms']} ms, "
            f"8 adapters {peer['mixed']['median_ms']} ms; ours is {peer['mixed']['median_ms'] / mixed:.2f} x"
        )
PY
