#!/usr/bin/env bash
# Installs what is missing, builds, and runs all tests: unit, integration, architecture, lint, and
# the sanitizer builds. Closes with "N passed, N failed".
#
# usage: tests/run.sh [options]
#   --quick          leave out the sanitizer builds
#   --only REGEX     build and run the tests of the dev build whose names match; a folder's unit
#                    tests are one (coordinator_frontend_test); `ctest --test-dir build/dev -N` lists
#   --jobs N         compile and test jobs (default: the number of cores)
#   --no-packages    leave the system's packages alone
#   --help
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../deploy/lib.sh"

quick=0 only="" jobs=$(nproc) install=()
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1 ;;
    --only) needs "$1" "a pattern" "${2-}" && only=$2 quick=1 && shift ;;
    --jobs) needs "$1" "a number" "${2-}" && jobs=$2 && shift ;;
    --no-packages) install+=(--no-packages) ;;
    --help) help_of "$0" && exit 0 ;;
    *) misuse "unknown option $1" ;;
  esac
  shift
done
whole --jobs "$jobs"
grep -qE -e "$only" </dev/null
[ $? -lt 2 ] || misuse "--only $only: is no regular expression"

passed=0 failed=0 failures=() times=()

record_failure() {
  failed=$((failed + 1))
  failures+=("$1")
}

# count_results PRESET FILE: adds up what ctest wrote, and names what did not pass.
count_results() {
  local status name
  while IFS=$'\t' read -r status name; do
    if [ "$status" = run ]; then passed=$((passed + 1)); else record_failure "$1: $name"; fi
  done < <(python3 - "$2" <<'PY'
import sys, xml.etree.ElementTree as tree
for case in tree.parse(sys.argv[1]).getroot().iter("testcase"):
    print(case.get("status"), case.get("name"), sep="\t")
PY
  )
}

# run_preset PRESET BUILD-TARGET... -- CTEST-ARGUMENT...
run_preset() {
  local preset=$1 targets=() began=$SECONDS junit before
  shift
  while [ "$1" != -- ]; do targets+=(--target "$1") && shift; done
  shift
  if ! deploy/install.sh --tests --preset "$preset" --jobs "$jobs" ${targets[@]+"${targets[@]}"} \
    ${install[@]+"${install[@]}"}; then
    record_failure "$preset: build"
    return
  fi
  times+=("$preset build $((SECONDS - began)) s") began=$SECONDS
  say "testing build/$preset"
  junit=$ROOT/build/$preset/results.xml before=$((passed + failed))
  rm -f "$junit"
  ${launcher[@]+"${launcher[@]}"} ctest --test-dir "build/$preset" -j "$jobs" --progress \
    --output-on-failure --no-tests=error --output-junit "$junit" "$@"
  [ ! -f "$junit" ] || count_results "$preset" "$junit"
  [ $((passed + failed)) -gt "$before" ] || record_failure "$preset: no test ran"
  times+=("$preset tests $((SECONDS - began)) s")
}

# find_only: sets `only_targets` to what the tests that --only names need built: themselves, or all
# where one of them is a script. Ends when there are none, before anything is built.
find_only() {
  local name names
  deploy/install.sh --tests --no-build ${install[@]+"${install[@]}"} || exit 1
  cmake --preset dev >/dev/null || exit 1
  names=$(ctest --test-dir build/dev -N -R "$only" 2>/dev/null | sed -n 's/^ *Test *#[0-9]*: //p')
  [ -n "$names" ] ||
    die "--only $only: no test has such a name; 'ctest --test-dir build/dev -N' lists them"
  for name in $names; do
    if ! ninja -C build/dev -t query "$name" >/dev/null 2>&1; then
      only_targets=()
      return
    fi
    only_targets+=("$name")
  done
}

cd "$ROOT" || exit 1
only_targets=()
[ -z "$only" ] || find_only
launcher=()
# Tests of the CUDA kernels are built wherever there is a toolkit, and run where there is a GPU.
gpu=()
gpus=$(nvidia-smi -L 2>/dev/null | grep -c ^GPU || true)
if [ "$gpus" = 0 ]; then
  gpu=(-LE gpu)
  times+=("no GPU here: tests labelled gpu and gpus were not run")
elif [ "$gpus" = 1 ]; then
  gpu=(-LE gpus)
  times+=("one GPU here: tests labelled gpus were not run")
fi
run_preset dev ${only_targets[@]+"${only_targets[@]}"} -- ${gpu[@]+"${gpu[@]}"} ${only:+-R "$only"}
if [ $quick = 0 ]; then
  run_preset asan sanitized_tests -- -L sanitized
  # The thread sanitizer's shadow memory does not fit every address space layout.
  if setarch -R true 2>/dev/null; then launcher=(setarch -R); fi
  run_preset tsan sanitized_tests -- -L sanitized
fi

say "summary"
printf '%s\n' "${times[@]}"
[ $failed = 0 ] || printf 'FAILED %s\n' "${failures[@]}"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ $failed = 0 ]
