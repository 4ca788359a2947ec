#!/usr/bin/env bash
# The whole path on one GPU (DEVICE=cpu: on the host): coordinator, lora-worker with random weights
# of a config.json, concurrent streams for the base and for adapters through gRPC. With NUM_PAGES,
# which adapters and requests must exceed, first tokens of single requests instead; without, the
# engine alone (`lora-bench step`) at the same mean context afterwards.
#
# usage: tests/perf/gpu_stack.sh BIN_DIR MODEL_DIR OUT_DIR
#   ADAPTERS="8 64" LORA_RANK=16 STREAMS=64 PROMPT_TOKENS=1024 TOKENS=128 ROUNDS=2 PYTHON=python3
#   DEVICE=cuda NUM_PAGES=0 MACHINE=H200 COMMIT=unknown ENGINE=1 (0: not the engine alone)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/stack.sh"
adapters=${ADAPTERS:-8 64}
most=$(tr ' ' '\n' <<<"$adapters" | sort -n | tail -n 1)
streams=${STREAMS:-64} prompt=${PROMPT_TOKENS:-1024} tokens=${TOKENS:-128}

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
added=0 cases=()
recorded=(--machine "${MACHINE:-H200}" --commit "${COMMIT:-unknown}")
for count in $adapters; do
  began=$(date +%s)
  seq "$added" $((count - 1)) | xargs -r -P 8 -I{} "$bin/loractl" --address "$(address)" \
    adapter add "a{}" "$scratch/adapters/a{}" >/dev/null
  echo "$((count - added)) adapters added in $(($(date +%s) - began)) s"
  added=$count
  names=() cases+=(--case "${streams}x$count")
  for i in $(seq 0 $((count - 1))); do names+=(--name "a$i"); done
  what=(streams --streams "$streams" --max-tokens "$tokens")
  [ "${NUM_PAGES:-0}" -eq 0 ] || what=(first-token)
  "$bin/lora-bench" "${what[@]}" --address "$(address)" --base base "${names[@]}" \
    --prompt-tokens "$prompt" --rounds "${ROUNDS:-2}" "${recorded[@]}" \
    --out "$out/gpu-stack-$count.json" >/dev/null
  show_results "$out/gpu-stack-$count.json"
done
save_metrics "$scratch/worker.ports" "$out/worker.metrics"
save_metrics "$scratch/ports" "$out/coordinator.metrics"
grep -E '^rootstock_adapter_(evictions|loads)_total.* [1-9]' "$out/coordinator.metrics" || true
if [ "${NUM_PAGES:-0}" -eq 0 ] && [ "${ENGINE:-1}" = 1 ]; then
  stop # the engine alone takes the memory
  coordinator="" worker=""
  "$bin/lora-bench" step --model "$model" --dummy --device "${DEVICE:-cuda}" \
    --lora-rank "${LORA_RANK:-16}" --context "$prompt" --steps "$tokens" --rounds "${ROUNDS:-2}" \
    "${cases[@]}" --out "$out/engine-alone.json" >/dev/null
fi
"$python" "$here/gpu_stack_report.py" "$out" $adapters
