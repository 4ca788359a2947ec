#!/usr/bin/env bash
# compute-sanitizer over every CUDA kernel, in cases small enough for it: a launch is some thousand
# times slower under it.
#
# usage: tests/racecheck.sh GPU_TESTS_DIR [racecheck|memcheck|synccheck] [CASE...]
#   CASES_AT_ONCE=4 SECONDS_A_CASE=40
set -uo pipefail
dir=${1:?folder of the GPU tests} tool=${2:-racecheck}
shift $(($# < 2 ? $# : 2))
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)

# case binary gtest-filter
cases() {
  cat <<'CASES'
gemm1 kernels_linear_cuda_test Cases/FewLinearLaunches.*/0
gemm2 kernels_linear_cuda_test Cases/FewLinearLaunches.*/1
gemm3 kernels_linear_cuda_test Cases/FewLinearLaunches.*/2
gemm4 kernels_linear_cuda_test Cases/FewLinearLaunches.*/3
gemm5 kernels_linear_cuda_test Cases/FewLinearLaunches.*/4
gemm6 kernels_linear_cuda_test Cases/FewLinearLaunches.*/5
gemm7 kernels_linear_cuda_test Cases/FewLinearLaunches.*/6
gemm_gated kernels_linear_cuda_test Rows/FewGatedLinearLaunches.*/0
gemm_gated_many kernels_linear_cuda_test Rows/FewGatedLinearLaunches.*/1
decode128 kernels_attention_cuda_test FewAttentionLaunches.DecodeOfHeads128
decode_wide kernels_attention_cuda_test FewAttentionLaunches.DecodeOfWideGroups
decode64 kernels_attention_cuda_test FewAttentionLaunches.DecodeOfHeads64
plain kernels_attention_cuda_test FewAttentionLaunches.Plain
mixed kernels_attention_cuda_test FewAttentionLaunches.Mixed
fa2 kernels_attention_cuda_test FewAttentionLaunches.Fa2
prefill64 kernels_attention_cuda_test FewAttentionLaunches.PrefillOfHeads64
prefill128 kernels_attention_cuda_test FewAttentionLaunches.PrefillOfHeads128
sampler kernels_sampler_cuda_test FewSamplerLaunches.*:CountsCuda.*:SamplerCuda.TakesTokens*
sampler_spill kernels_sampler_cuda_test SamplerCuda.AVocabularyThatSpills
lora kernels_lora_cuda_test Decode/LoraCudaTest.*/31:Decode/LoraCudaTest.*/61:Decode/LoraCudaTest.*/64:Decode/LoraCudaTest.*/66
lora_tile kernels_lora_cuda_test Decode/LoraCudaTest.*/60
lora_any kernels_lora_cuda_test Any/LoraLongTest.*/4
lora_long kernels_lora_cuda_test Long/LoraCudaTest.*/28:Long/LoraCudaTest.*/38
lora_stream kernels_lora_cuda_test Long/LoraCudaTest.*/32
lora_gemm kernels_linear_lora_cuda_test FewLoraLinearLaunches.Shrinks
lora_gemm_wide kernels_linear_lora_cuda_test FewLoraLinearLaunches.ShrinksOfManyRows
lora_gated kernels_linear_lora_cuda_test FewLoraLinearLaunches.Expands
lora_gated_rows kernels_linear_lora_cuda_test FewLoraLinearLaunches.ExpandsRows
prefill kernels_prefill_cuda_test Shapes/PrefillLinearShapeTest.*/0:Shapes/PrefillLinearShapeTest.*/1
prefill_lora kernels_prefill_cuda_test Mixes/PrefillLoraTest.Adds*/6:Mixes/PrefillLoraTest.Gated*/5
exchange kernels_lora_exchange_test Sizes/LoraExchangeTest.*/0:Sizes/LoraExchangeTest.*/1
embed kernels_norm_cuda_test EmbedCudaTest.*
norm kernels_norm_cuda_test Any/NormCudaTest.Adds*/31:Any/NormCudaTest.Adds*/61:Any/NormCudaTest.Adds*/66
norm_few kernels_norm_cuda_test Few/NormCudaTest.Adds*/8:Few/NormCudaTest.Adds*/13
norm_wide kernels_norm_cuda_test Any/NormCudaTest.Adds*/64
norm_tile kernels_norm_cuda_test Any/NormCudaTest.Adds*/60:Middle/NormCudaTest.Adds*/2
norm_long kernels_norm_cuda_test Long/NormCudaTest.Adds*/16:Long/NormCudaTest.Adds*/17
norm_long_wide kernels_norm_cuda_test Long/NormCudaTest.Adds*/18
rope kernels_rope_cuda_test Any/RopeCudaTest.Rotates*/31:Any/RopeCudaTest.Rotates*/61:Any/RopeCudaTest.Rotates*/66
rope_tile kernels_rope_cuda_test Any/RopeCudaTest.Rotates*/60:Any/RopeCudaTest.Rotates*/62
rope_long kernels_rope_cuda_test Long/RopeCudaTest.Rotates*/8
silu kernels_activation_cuda_test Any/SiluCudaTest.*/25:Any/SiluCudaTest.*/49:Any/SiluCudaTest.*/53
silu_tile kernels_activation_cuda_test Any/SiluCudaTest.*/48
silu_long kernels_activation_cuda_test Long/SiluCudaTest.*/12:Long/SiluCudaTest.*/13
upload kernels_upload_cuda_test UploadCudaTest.*-*.DoesNotWait*
peers kernels_collective_cuda_test Size/PeerCollectives.Graphs/0
peers_words kernels_collective_cuda_test Size/PeerCollectives.Exact*/0
peers_norm kernels_collective_cuda_test Size/SumNorm.AmongSums/0
peers_lora kernels_collective_cuda_test Size/ExchangeLoraTest.EveryRank*/0
CASES
}

# run_case CASE BINARY FILTER: a line that ends in ok, or what went wrong.
run_case() {
  local log start=$SECONDS rc
  log=$(mktemp)
  timeout -k 2 "${SECONDS_A_CASE:-40}" "$sanitizer" --tool "$tool" --error-exitcode 9 \
    "$dir/$2" --gtest_filter="$3" >"$log" 2>&1
  rc=$?
  if [ $rc -eq 0 ] && grep -q '  PASSED  \] [1-9]' "$log"; then
    echo "$tool $1: $((SECONDS - start)) s, ok"
  elif [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
    echo "$tool $1: not done after $((SECONDS - start)) s"
  else
    echo "$tool $1: $((SECONDS - start)) s, rc $rc"
    grep -E 'hazard|Invalid|Error|error|FAILED|Failure|SUMMARY' "$log" | sort | uniq -c | sort -rn |
      head -n 8 | cut -c 1-200
  fi
  rm -f "$log"
}

if [ "${RACECHECK_CASE:-}" ]; then
  run_case "$@"
  exit
fi
wanted=" $* "
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cases | while read -r name binary filter; do
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || continue
  printf '%s\0%s\0%s\0' "$name" "$binary" "$filter"
done | RACECHECK_CASE=1 xargs -0 -r -n 3 -P "${CASES_AT_ONCE:-4}" "$0" "$dir" "$tool" | tee "$log"
[ -s "$log" ] && ! grep -E '^(racecheck|memcheck|synccheck) ' "$log" | grep -qv ' ok$'
