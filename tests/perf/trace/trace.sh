#!/usr/bin/env bash
# Goal 9 on one GPU (DEVICE=cpu: on the host): S-LoRA's trace over ADAPTERS adapters (of RANKS in turn
# on q,k,v,o) where pages are for FIT of them beside the KV of SEQS sequences of mean length, and over
# RESIDENT ones, alternately: `lora-bench trace`. All adapters have been on the host before.
#
# usage: tests/perf/trace/trace.sh BIN_DIR MODEL_DIR OUT_DIR [flags of lora-bench trace, as --rounds 5]
#   RANKS=8 or "8 16 64" ADAPTERS=1000 FIT=64 SEQS=64 RESIDENT=8 MIN_LENGTH=8 MAX_LENGTH=512 PYTHON=python3 DEVICE=cuda
#   SLOTS=sequences that may run, of which SEQS decode in a step; default 3/16 more
#   THREADS=of the worker: 1 where others share the cores
#   ADAPTER=folder of one adapter, else a random one is made · SCRATCH=folder for what is large
set -euo pipefail
perf=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$perf/stack.sh"
shift 3
count=${ADAPTERS:-1000} seqs=${SEQS:-64} least=${MIN_LENGTH:-8} most=${MAX_LENGTH:-512}
page_tokens=16
since() { echo "$((SECONDS)) s: $*"; }

adapters=(${ADAPTER:-})
for rank in ${RANKS:-8}; do
  [ -z "${ADAPTER:-}" ] || break
  "$python" "$perf/make_adapters.py" "$model" "$scratch/one/$rank" --count 1 \
    --rank "$rank" --modules q_proj k_proj v_proj o_proj
  adapters+=("$scratch/one/$rank/a0")
done
read -r pages elements < <("$python" "$perf/trace/pages_for.py" "$model" $page_tokens "${adapters[@]}")
kv=$((seqs * ((least + most + page_tokens - 1) / page_tokens)))
NUM_PAGES=$((${FIT:-64} * pages + kv + 1))
width=$([ "${DEVICE:-cuda}" = cuda ] && echo 2 || echo 4)
since "an adapter takes $pages pages; $NUM_PAGES pages, of them $kv for KV and 1 for scratch"
start_coordinator --max-model-len $((2 * most)) --max-num-seqs "${SLOTS:-$((seqs + seqs * 3 / 16))}" \
  --max-decode-rows "$seqs" --max-queue 10000
start_worker --page-tokens $page_tokens \
  --host-cache-bytes $(((count + 8) * pages * elements * width)) \
  ${THREADS:+--threads "$THREADS"}
"$python" "$perf/trace/adapter_copies.py" "${adapters[@]}" "$scratch/adapters" "$count"
since "$count adapters written"
seq 0 $((count - 1)) | LORACTL="$bin/loractl" ADDRESS=$(address) FOLDER=$scratch/adapters \
  xargs -P "$(nproc)" -n 1 sh -c \
  '"$LORACTL" --address "$ADDRESS" adapter add "a$0" "$FOLDER/a$0" >/dev/null &&
   rm -r "$FOLDER/a$0"'
since "$count adapters registered"
wait_for 120 group_ready
since "group ready"
names=()
for i in $(seq 0 $((count - 1))); do names+=(--name "a$i"); done
"$bin/lora-bench" trace --address "$(address)" --resident "${RESIDENT:-8}" \
  --streams $((seqs + seqs / 4)) --min-length "$least" --max-length "$most" \
  --out "$out/trace.json" "$@" "${names[@]}" 2>&1 >/dev/null | tee "$out/trace.log" >&2
# Of a thousand names the command says little.
sed -i -E 's/( --name a[0-9]+)+/ --name a0 …/' "$out/trace.json"
show_results "$out/trace.json"
save_metrics "$scratch/worker.ports" "$out/worker.metrics"
save_metrics "$scratch/ports" "$out/coordinator.metrics"
grep -E '^rootstock_(adapter_(evictions|loads|lookup)_total|adapters_resident|preemptions_total)' \
  "$out/coordinator.metrics" | grep -v ' 0$' || true
since "end"
