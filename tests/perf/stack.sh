# Sourced by gpu_stack.sh and trace/trace.sh: one coordinator and one lora-worker with random weights of a
# config.json, in a scratch folder that goes with them. Sets bin, model, out, scratch.
#   PYTHON=python3 DEVICE=cuda NUM_PAGES=0 SCRATCH=folder for what is large
bin=${1:?folder of the binaries} model=${2:?folder with config.json} out=${3:?output folder}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
scratch=$(mktemp -d ${SCRATCH:+-p "$SCRATCH"})
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
# Read to its end: else the writer's SIGPIPE is the pipe's failure.
group_ready() { ctl status --json | grep '"state": *"ready"' >/dev/null; }

# start_coordinator FLAGS...
start_coordinator() {
  mkdir -p "$scratch/adapters"
  "$bin/lora-coordinator" --listen 127.0.0.1:0 --metrics-port 0 --port-file "$scratch/ports" \
    --data "$scratch/data" --model "$model" --served-model-name base \
    --adapter-root "$scratch/adapters" "$@" >"$out/coordinator.log" 2>&1 &
  coordinator=$!
  wait_for 20 test -s "$scratch/ports"
}

# start_worker FLAGS...; it is ready when group_ready says so.
start_worker() {
  mpirun -np 1 --bind-to none "$bin/lora-worker" --coordinator "$(address)" --model "$model" \
    --device "${DEVICE:-cuda}" --load-format dummy --num-pages "${NUM_PAGES:-0}" \
    --metrics-port 0 --cache-dir "$scratch/cache" --port-file "$scratch/worker.ports" "$@" \
    >"$out/worker.log" 2>&1 &
  worker=$!
}

# save_metrics PORT_FILE FILE
save_metrics() {
  "$python" -c 'import sys, urllib.request
text = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read()
open(sys.argv[2], "wb").write(text)' "$(sed -n 's/^metrics //p' "$1")" "$2"
}

# show_results FILE: a line a case.
show_results() {
  "$python" -c 'import json, sys
for e in json.load(open(sys.argv[1])):
    print(e.get("goal", ""), e["case"], round(e["value"], 4), e["unit"], flush=True)' "$1"
}
