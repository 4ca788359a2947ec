#!/usr/bin/env bash
# The whole path on one GPU (DEVICE=cpu: on the host): coordinator, lora-worker with random weights
# of a config.json, concurrent streams for the base and for adapters through gRPC; then STREAMS of
# them that come and go, with how idle the device was between the worker's steps. With NUM_PAGES,
# which adapters and requests must exceed, first tokens of single requests instead; without, the
# engine alone (`lora-bench step`) at the same mean context afterwards, with as many rows as STREAMS.
#
# usage: tests/perf/gpu_stack.sh BIN_DIR MODEL_DIR OUT_DIR
#   CASES="1x1 16x8 64x8 64x64" (streams x adapters) LORA_RANK=16 STREAMS=64 PROMPT_TOKENS=1024
#   TOKENS=128 ROUNDS=2 PYTHON=python3 DEVICE=cuda NUM_PAGES=0 MACHINE=H200 COMMIT=unknown
#   CHURN=8 (ended for each of STREAMS; 0: none) ENGINE=1 (0: not the engine alone)
#   ADAPTERS="8 64": in place of CASES, each with STREAMS
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/stack.sh"
streams=${STREAMS:-64} prompt=${PROMPT_TOKENS:-1024} tokens=${TOKENS:-128}
cases=${CASES:-1x1 16x8 64x8 64x64}
[ -z "${ADAPTERS:-}" ] || cases=$(printf "${streams}x%s " $ADAPTERS)
most=$(tr ' ' '\n' <<<"$cases" | sed 's/.*x//' | sort -n | tail -n 1)

"$python" "$here/make_adapters.py" "$model" "$scratch/adapters" --count "$most" \
  --rank "${LORA_RANK:-16}"
start_coordinator --max-model-len $((prompt + tokens + 16)) --max-num-seqs "$streams"
began=$(date +%s.%N)
start_worker
wait_for 120 group_ready
ready=$(date +%s.%N)
"$bin/lora-bench" streams --address "$(address)" --base base --name base --streams 1 \
  --prompt-tokens 8 --max-tokens 4 --rounds 1 >/dev/null || true
first=$(date +%s.%N)
"$python" -c "print(f'worker start to ready {$ready - $began:.2f} s, to the first tokens {$first - $began:.2f} s')" |
  tee "$out/start.txt"
save_metrics "$scratch/worker.ports" "$out/worker-start.metrics"
added=0 names=() alone=()
recorded=(--machine "${MACHINE:-H200}" --commit "${COMMIT:-unknown}")
bench() {
  local what=$1 file=$2
  shift 2
  "$bin/lora-bench" "$what" --address "$(address)" --base base "${recorded[@]}" "$@" \
    --out "$out/$file.json" >/dev/null
  show_results "$out/$file.json"
  save_metrics "$scratch/worker.ports" "$out/$file.metrics"
}
for case in $cases; do
  rows=${case%x*} count=${case#*x} began=$(date +%s)
  seq "$added" $((count - 1)) | xargs -r -P 8 -I{} "$bin/loractl" --address "$(address)" \
    adapter add "a{}" "$scratch/adapters/a{}" >/dev/null
  names=()
  for i in $(seq 0 $((count - 1))); do names+=(--name "a$i"); done
  if [ "$count" -gt "$added" ]; then
    echo "$((count - added)) adapters added in $(($(date +%s) - began)) s"
    added=$count
  fi
  if [ "${NUM_PAGES:-0}" -eq 0 ]; then # adapters come to the device before anything is measured
    "$bin/lora-bench" churn --address "$(address)" --base base "${names[@]}" --streams "$rows" \
      --prompt-tokens 8 --max-tokens 4 --rounds $(((count + rows - 1) / rows)) >/dev/null
    save_metrics "$scratch/worker.ports" "$out/before-$case.metrics"
  fi
  [ "$rows" != "$streams" ] || alone+=(--case "$case")
  what=(streams "gpu-stack-$case" --streams "$rows" --max-tokens "$tokens")
  [ "${NUM_PAGES:-0}" -eq 0 ] || what=(first-token "gpu-stack-$case")
  bench "${what[@]}" "${names[@]}" --prompt-tokens "$prompt" --rounds "${ROUNDS:-2}"
done
if [ "${NUM_PAGES:-0}" -eq 0 ] && [ "${CHURN:-8}" -gt 0 ]; then
  # Short prompts: their steps are nearly as short as those that only decode.
  bench churn gpu-stack-churn "${names[@]}" --streams "$streams" \
    --prompt-tokens $((prompt < 32 ? prompt : 32)) --max-tokens $((tokens / 2)) --rounds "${CHURN:-8}"
fi
save_metrics "$scratch/worker.ports" "$out/worker.metrics"
save_metrics "$scratch/ports" "$out/coordinator.metrics"
grep -E '^rootstock_adapter_(evictions|loads)_total.* [1-9]' "$out/coordinator.metrics" || true
if [ "${NUM_PAGES:-0}" -eq 0 ] && [ "${ENGINE:-1}" = 1 ] && [ ${#alone[@]} -gt 0 ]; then
  stop # the engine alone takes the memory
  coordinator="" worker=""
  "$bin/lora-bench" step --model "$model" --dummy --device "${DEVICE:-cuda}" \
    --lora-rank "${LORA_RANK:-16}" --context "$prompt" --steps "$tokens" --rounds "${ROUNDS:-2}" \
    "${alone[@]}" --out "$out/engine-alone.json" >/dev/null
fi
"$python" "$here/gpu_stack_report.py" "$out" $cases
