#!/usr/bin/env bash
# All that the GPUs of one host show together, in one call: goldens and lost ranks at every tp_size,
# our sums beside NCCL's, steps of 8B and 70B shapes in both ways of sharding, what collectives add to
# them, and two groups of half the GPUs beside one of all. DEVICE=cpu runs the same on toy shapes.
#
# usage: tests/perf/gpus/run.sh BUILD_DIR OUT_DIR
#   RANKS=8 DEVICE=cuda SHAPES="8b 70b" CONTEXT=1024 STEPS=48 ROUNDS=2 PARTS="tests collectives steps
#   groups" MACHINE= COMMIT=unknown PYTHON=python3
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
build=$(cd "${1:?folder of the build}" && pwd) && mkdir -p "${2:?output folder}" && out=$(cd "$2" && pwd)
ranks=${RANKS:-8} device=${DEVICE:-cuda} python=${PYTHON:-python3}
context=${CONTEXT:-1024} steps=${STEPS:-48} rounds=${ROUNDS:-2}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ROOTSTOCK_BINARY_DIR=$build
export ROOTSTOCK_SOURCE_DIR=$root
failed=0

part() { # NAME COMMAND...
  local name=$1 began=$SECONDS code=0
  shift
  "$@" >"$out/$name.log" 2>&1 || code=$?
  echo "$name: exit code $code, $((SECONDS - began)) s"
  [ "$code" -eq 0 ] || { failed=1 && tail -n 5 "$out/$name.log"; }
  return "$code"
}
bench() { # NAME ARGUMENT...
  local name=$1
  shift
  part "$name" "$build/bin/lora-bench" "$@" --commit "${COMMIT:-unknown}" \
    ${MACHINE:+--machine "$MACHINE"} --out "$out/$name.json"
}
step() { # NAME SHAPE RANKS ARGUMENT...
  local name=$1 shape=$2 np=$3
  shift 3
  bench "$name" step --np "$np" --model "$out/$shape" --dummy --device "$device" \
    --context "$context" --steps "$steps" --rounds "$rounds" "$@"
}
lora=(--lora-rank 16)
cases=(--case 1x1 --case 16x8 --case 64x8 --case 64x64)
half=32x8 whole=64x8
if [ "$device" != cuda ]; then
  lora=(--lora-rank 3 --threads 1)
  cases=(--case 1x1 --case 4x2)
  half=2x2 whole=4x2
fi

# At once: what a lost rank does is to be seen beside other work too. SmolLM2's goldens only where the
# model is, else the tests would fetch it.
run_tests() {
  local suite=gpus_test jobs=() only=()
  [ "$device" = cuda ] || suite=test
  PYTHONPATH=$root/deploy/models "$python" -c \
    'import smollm2 as s, sys; sys.exit(not s.is_complete(s.cache_target()))' ||
    only=(-k tiny -k fully -k replicated -k auto -k lost)
  unit() { env -C "$root/tests/integration" "$python" -m unittest -v "$@"; }
  for name in golden sharding; do
    part "tests-$name" unit "${name}_$suite" "${only[@]}" &
    jobs+=($!)
  done
  part tests-faults unit "faults_$suite" &
  jobs+=($!)
  for job in "${jobs[@]}"; do wait "$job" || failed=1; done
  [ "$device" != cuda ] || part tests-group "$build/gpu_tests/worker_group_gpus_test"
}
run_collectives() {
  [ "$device" != cuda ] || bench collectives collectives --np "$ranks"
}
run_steps() {
  for shape in $shapes; do
    for way in replicated fully-sharded; do
      step "step-$shape-$way" "$shape" "$ranks" "${lora[@]}" "${cases[@]}" --lora-sharding $way
    done
    step "step-$shape-alone" "$shape" 0 "${lora[@]}" "${cases[@]}" --alone-of "$ranks"
  done
}
# The same rows by two groups of half the ranks each, at once, and by one.
run_groups() {
  local each=$((ranks / 2)) shape=${shapes##* }
  local first last
  first=$(seq -s , 0 $((each - 1))) last=$(seq -s , $each $((ranks - 1)))
  CUDA_VISIBLE_DEVICES=$first step groups-half-0 "$shape" "$each" "${lora[@]}" --case $half &
  local other=$!
  CUDA_VISIBLE_DEVICES=$last step groups-half-1 "$shape" "$each" "${lora[@]}" --case $half
  wait "$other" || failed=1
  step groups-one "$shape" "$ranks" "${lora[@]}" --case $whole
}

shapes=${SHAPES:-8b 70b}
[ "$device" = cuda ] || shapes=toy
"$python" "$here/shapes.py" "$out" $shapes
for name in ${PARTS:-tests collectives steps groups}; do "run_$name"; done
"$python" "$here/table.py" "$out" | tee "$out/table.txt"
exit $failed
