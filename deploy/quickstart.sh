#!/usr/bin/env bash
# From a fresh Debian 12 to answers: installs, builds, fetches SmolLM2-135M-Instruct, starts a
# coordinator and one group of two CPU ranks, registers the demo adapters, and asks the base and
# every adapter at once. The servers stay in the background; a second run takes seconds.
#
# usage: deploy/quickstart.sh [options]
#   --stop           stop the servers that an earlier run left
#   --once           stop the servers after the answers
#   --ranks N        tensor-parallel ranks, 1 to 3 (default 2)
#   --prompt TEXT    ask all of them this (default: deploy/demo/prompts.json)
#   --max-tokens N   length of each answer (default 48)
#   --no-install     use what is installed and built
#   --state DIR      logs, ports, registry (default: build/quickstart)
#   --help
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

base=SmolLM2-135M-Instruct bin=$ROOT/build/dev/bin
state=$ROOT/build/quickstart install=1 once=0 stop=0 ranks="" max_tokens=48
prompt=""
while [ $# -gt 0 ]; do
  case $1 in
    --stop) stop=1 ;;
    --once) once=1 ;;
    --ranks) needs "$1" "a number" "${2-}" && ranks=$2 && shift ;;
    --prompt) needs "$1" "a text" "${2-}" && prompt=$2 && shift ;;
    --max-tokens) needs "$1" "a number" "${2-}" && max_tokens=$2 && shift ;;
    --no-install) install=0 ;;
    --state) needs "$1" "a folder" "${2-}" && state=$(realpath -m "$2") && shift ;;
    --help) help_of "$0" && exit 0 ;;
    *) misuse "unknown option $1" ;;
  esac
  shift
done
[ -z "$ranks" ] || whole --ranks "$ranks" 3 # as many KV heads has the model
whole --max-tokens "$max_tokens"

# Each server leads a session of its own, whose number finds every process it started.
session_of() { cat "$state/$1.pid" 2>/dev/null; }

# members_of NAME: the live processes of the server's session.
members_of() {
  local session stat line
  session=$(session_of "$1") || return 0
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    set -- ${line##*) } # "pid (name) state ppid pgrp session …"; a name may hold spaces
    if [ "$4" = "$session" ] && [ "$1" != Z ]; then printf '%s\n' "${line%% *}"; fi
  done
}

alive() { [ -n "$(members_of "$1")" ]; }

# end NAME SIGNAL: asks it to leave, waits, then takes what is left.
end() {
  local waited=0
  [ -f "$state/$1.pid" ] || return 0
  kill "-$2" "$(session_of "$1")" 2>/dev/null || true
  while alive "$1" && [ $waited -lt 100 ]; do
    sleep 0.1
    waited=$((waited + 1))
  done
  members_of "$1" | xargs -r kill -KILL 2>/dev/null || true
  rm -f "$state/$1.pid"
}

stop_all() {
  end worker USR1 # drains the group
  end coordinator TERM
}

# launch NAME COMMAND...: in the background, its output in build/quickstart/NAME.log.
launch() {
  local name=$1
  shift
  rm -f "$state/$name.ports"
  setsid "$@" >"$state/$name.log" 2>&1 </dev/null &
  echo $! >"$state/$name.pid"
}

fail_with_logs() {
  tail -n 20 "$state"/*.log >&2
  die "$1"
}

# wait_for SECONDS WHAT COMMAND...: until the command succeeds; gives up when a server ended.
wait_for() {
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ $SECONDS -lt $until ] || fail_with_logs "$what took too long"
    for name in coordinator worker; do
      [ ! -f "$state/$name.pid" ] || alive $name || fail_with_logs "$name ended"
    done
    sleep 0.2
  done
}

port_of() { sed -n "s/^$2[ =:]*//p" "$state/$1.ports"; }
has_ports() { [ -s "$state/$1.ports" ]; }
ctl() { "$bin/loractl" --address "127.0.0.1:$(port_of coordinator grpc)" "$@"; }
group_ready() { ctl status --json 2>/dev/null | grep -q '"state": *"ready"'; }

start_all() {
  local mpi=(mpirun -np "$ranks" --oversubscribe --bind-to none)
  [ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)
  say "starting the coordinator and mpirun -np $ranks lora-worker --device cpu"
  launch coordinator "$bin/lora-coordinator" --listen 127.0.0.1:0 --metrics-port 0 \
    --port-file "$state/coordinator.ports" --data "$state/data" --model "$model" \
    --served-model-name "$base" --adapter-root "$ROOT/deploy/demo/adapters"
  wait_for 30 "the coordinator's start" has_ports coordinator
  launch worker "${mpi[@]}" "$bin/lora-worker" \
    --coordinator "127.0.0.1:$(port_of coordinator grpc)" --model "$model" --device cpu \
    --group quickstart --metrics-port 0 --port-file "$state/worker.ports"
  wait_for 120 "loading the model" group_ready
}

register_adapters() {
  local folder
  for folder in deploy/demo/adapters/*/; do
    ctl adapter add "$(basename "$folder")" "$ROOT/$folder"
  done
}

cd "$ROOT"
if [ $stop = 1 ]; then
  stop_all
  say "stopped"
  exit 0
fi
# Servers that were up before this run stay up whatever happens to it.
started=0
give_up() { [ $started = 0 ] || stop_all; }
trap 'trap - INT TERM EXIT; give_up; exit 130' INT TERM
trap 'give_up' EXIT

[ $install = 0 ] ||
  deploy/install.sh --preset dev --target lora-coordinator --target lora-worker --target loractl
mkdir -p "$state"
say "model"
model=$("$VENV/bin/python" deploy/models/smollm2.py)
echo "$model"

if alive coordinator && alive worker && [ "$state/worker.pid" -nt "$bin/lora-worker" ] &&
  [ "$state/coordinator.pid" -nt "$bin/lora-coordinator" ]; then
  [ -z "$ranks" ] || [ "$ranks" = "$(cat "$state/ranks")" ] ||
    die "the servers of an earlier run are up with $(cat "$state/ranks") ranks: --stop them first"
  say "the servers of an earlier run are up"
else
  stop_all
  started=1 ranks=${ranks:-2}
  echo "$ranks" >"$state/ranks"
  start_all
fi
say "adapters"
register_adapters

# write_batch FILE: one line a request, the base's and every adapter's.
write_batch() {
  "$VENV/bin/python" - "$prompt" deploy/demo/prompts.json >"$1" <<'PY'
import json, sys
demo = json.load(open(sys.argv[2], encoding="utf-8"))
for entry in demo["prompts"]:
    prompt = demo["template"].replace("{question}", sys.argv[1] or entry["question"])
    print(json.dumps({"model": entry["model"], "prompt": prompt}))
PY
}

say "asking the base and every adapter at once"
write_batch "$state/batch.jsonl"
ctl generate --batch "$state/batch.jsonl" --max-tokens "$max_tokens" \
  --temperature 0 --parse-special
say "what ran together"
ctl status

trap - INT TERM EXIT
if [ $once = 1 ]; then
  stop_all
  say "stopped"
  exit 0
fi
say "serving; logs in $state"
# Prompts are raw text: the model's chat template is part of it.
chat="\$'<|im_start|>user\\nWhat is the capital of France?<|im_end|>\\n<|im_start|>assistant\\n'"
printf '%s\n' \
  "ask       build/dev/bin/loractl --address 127.0.0.1:$(port_of coordinator grpc) generate --model pirate --parse-special --temperature 0 --max-tokens 64 $chat" \
  "metrics   http://127.0.0.1:$(port_of coordinator metrics)/metrics (coordinator)" \
  "          http://127.0.0.1:$(port_of worker metrics)/metrics (worker)" \
  "stop      deploy/quickstart.sh --stop"
