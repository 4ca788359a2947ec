#!/usr/bin/env python3
"""gpu_stack.sh's files as one, with what it is held against: OUT_DIR ADAPTERS... -> gpu-stack.json."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

# SGLang 0.5.17 on an H200 with slots for 8 of 64 adapters: 64 streams, prompt 1024, 128 tokens of 8B.
PEER_OUTPUT = 836.0
# Of gpu_stack.sh, recorded where they are given.
FLAGS = ("ADAPTERS", "LORA_RANK", "STREAMS", "PROMPT_TOKENS", "TOKENS", "ROUNDS", "NUM_PAGES")


def value(entries: list[dict], ending: str) -> float | None:
    return next((e["value"] for e in entries if e["case"].endswith(ending)), None)


def engine_alone(entries: list[dict], streams: str, adapters: str) -> float | None:
    kind = f"adapters={adapters} " if adapters else "base"
    return next(
        (
            e["value"]
            for e in entries
            if f"decode rows={streams} " in e["case"] and kind in e["case"] and "median" in e["case"]
        ),
        None,
    )


def found_in(path: Path, pattern: str) -> float | None:
    text = path.read_text(errors="replace") if path.exists() else ""
    found = re.search(pattern, text, re.MULTILINE)
    return float(found.group(1)) if found else None


def extras(out: Path, counts: list[str], entries: dict[str, list[dict]]) -> list[dict]:
    found: list[dict] = []

    def keep(name: str, number: float | None, unit: str, **more) -> None:
        if number is not None:
            found.append({"case": name, "value": round(number, 4)} | more | {"unit": unit})

    alone_file = out / "engine-alone.json"
    alone = json.loads(alone_file.read_text()) if alone_file.exists() else []
    for count in counts:
        streams = re.match(r"streams=(\d+)", entries[count][0]["case"])
        if not streams:  # first tokens
            continue
        for adapters, kind in ((count, f"adapters={count}"), ("", "base")):
            stack = value(entries[count], f"{kind}, time a token")
            engine = engine_alone(alone, streams[1], adapters)
            name = f"streams={streams[1]} {kind}, beside {count} adapters"
            keep(f"{name}, lora-bench step", engine, "ms", better="lower")
            if stack and engine:
                keep(f"{name}, time a token over lora-bench step", stack / engine, "ratio",
                     better="lower", goal="whole path", bound=1.02)  # fmt: skip
        output = value(entries[count], f"adapters={count}, output")
        if count == "64" and streams[1] == "64" and output:
            keep("64 streams of 64 adapters, output over a peer with slots for 8",
                 output / PEER_OUTPUT, "ratio", better="higher", goal=15, bound=3.0)  # fmt: skip
    start = found_in(out / "start.txt", r"to the first tokens ([\d.]+) s")
    keep("worker start to first token", start, "s", better="lower", goal=16, bound=12.0)
    capture = found_in(out / "worker.log", r"graphs: .* in ([\d.e-]+) s")
    keep("graph capture", capture, "s", better="lower", goal=16, bound=3.0)
    weights = found_in(out / "worker.log", r"weights: (\d+) of \1 MiB")
    keep("weights on the device", weights, "MiB", better="lower")
    for when, name in (("worker-start", "without adapters"), ("worker", "with them on the host")):
        resident = found_in(out / f"{when}.metrics", r"^process_resident_memory_bytes(?:{.*})? (\S+)")
        keep(f"worker's resident memory, {name}", resident and resident / 2**20, "MiB",
             better="lower")  # fmt: skip
    return found


def main() -> None:
    out, counts = Path(sys.argv[1]), sys.argv[2:]
    entries = {n: json.loads((out / f"gpu-stack-{n}.json").read_text()) for n in counts}
    everything = [e for n in counts for e in entries[n]]
    common = {k: everything[0][k] for k in ("machine", "date", "commit")}
    flags = [f'{f}="{os.environ[f]}"' for f in FLAGS if f in os.environ]
    common["command"] = " ".join([*flags, "tests/perf/gpu_stack.sh BIN MODEL OUT"])
    added = [e | common for e in extras(out, counts, entries)]
    lines = ",\n".join(json.dumps(e | {"command": common["command"]}) for e in everything + added)
    (out / "gpu-stack.json").write_text(f"[\n{lines}\n]\n")
    for e in added:
        print(e.get("goal", ""), e["case"], e["value"], e["unit"])


if __name__ == "__main__":
    main()
