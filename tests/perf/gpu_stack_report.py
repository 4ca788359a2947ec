#!/usr/bin/env python3
"""gpu_stack.sh's files as one, with what it is held against: OUT_DIR CASES... -> gpu-stack.json."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

# SGLang 0.5.17 on an H200 with slots for 8 of 64 adapters: 64 streams, prompt 1024, 128 tokens of 8B.
PEER_OUTPUT = 836.0
# Of gpu_stack.sh, recorded where they are given.
FLAGS = ("ADAPTERS", "CASES", "LORA_RANK", "STREAMS", "PROMPT_TOKENS", "TOKENS", "ROUNDS", "NUM_PAGES", "CHURN")


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


def device_seconds(path: Path, phases: tuple[str, ...]) -> tuple[float, float] | None:
    """In steps of these phases and in the gaps before them, since the worker started."""
    found = [
        found_in(path, rf'^rootstock_step_{what}_seconds_total{{.*phase="{phase}".*}} (\S+)')
        for what in ("device", "gap")
        for phase in phases
    ]
    if None in found:
        return None
    return sum(found[: len(phases)]), sum(found[len(phases) :])


def idle(before: Path, after: Path, phases: tuple[str, ...]) -> float | None:
    """Share of the device's time that lay between steps, from one scrape of the worker to another."""
    first, last = device_seconds(before, phases), device_seconds(after, phases)
    if first is None or last is None:
        return None
    busy, gap = (b - a for a, b in zip(first, last))
    return gap / (busy + gap) if busy > 0 else None


def steps(before: Path, after: Path) -> float | None:
    counts = [
        [found_in(path, rf'^rootstock_step_duration_seconds_count{{.*phase="{phase}".*}} (\S+)')
         for phase in ("decode", "mixed", "prefill")]
        for path in (before, after)
    ]  # fmt: skip
    return None if None in counts[0] + counts[1] else sum(counts[1]) - sum(counts[0])


def idle_entries(out: Path, cases: list[str], entries: dict[str, list[dict]]) -> list[dict]:
    found: list[dict] = []

    def keep(name: str, number: float | None, **more) -> None:
        if number is not None:
            found.append({"case": name, "value": round(number, 6)} | more)

    goal = {"goal": 7, "bound": 0.01, "better": "lower", "unit": "ratio"}
    for case in cases:
        before, after = (out / f"{when}-{case}.metrics" for when in ("before", "gpu-stack"))
        streams, adapters = case.split("x")
        name = f"streams={streams}, base and adapters={adapters} in turn"
        keep(f"{name}, device idle between decode steps", idle(before, after, ("decode",)), **goal)
    if "churn" in entries:
        before, after = after, out / "gpu-stack-churn.metrics"
        name = entries["churn"][0]["case"].rpartition(", ")[0]
        ended, ran = value(entries["churn"], ", ended"), steps(before, after)
        keep(f"{name}, begun a step", ended / ran if ran else None, better="higher", unit="streams")
        keep(f"{name}, device idle between steps", idle(before, after, ("decode", "mixed")), **goal)
        keep(f"{name}, device idle between decode steps", idle(before, after, ("decode",)), **goal)
    return found


def extras(out: Path, cases: list[str], entries: dict[str, list[dict]]) -> list[dict]:
    found: list[dict] = []

    def keep(name: str, number: float | None, unit: str, **more) -> None:
        if number is not None:
            found.append({"case": name, "value": round(number, 4)} | more | {"unit": unit})

    alone_file = out / "engine-alone.json"
    alone = json.loads(alone_file.read_text()) if alone_file.exists() else []
    for case in cases:
        streams, count = case.split("x")
        for adapters, kind in ((count, f"adapters={count}"), ("", "base")):
            stack = value(entries[case], f"{kind}, time a token")
            engine = engine_alone(alone, streams, adapters)
            name = f"streams={streams} {kind}, beside {count} adapters"
            keep(f"{name}, lora-bench step", engine, "ms", better="lower")
            if stack and engine:
                keep(f"{name}, time a token over lora-bench step", stack / engine, "ratio",
                     better="lower", goal="whole path", bound=1.02)  # fmt: skip
        output = value(entries[case], f"adapters={count}, output")
        if case == "64x64" and output:
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
    out, cases = Path(sys.argv[1]), sys.argv[2:]
    names = [*cases, *(["churn"] if (out / "gpu-stack-churn.json").exists() else [])]
    entries = {n: json.loads((out / f"gpu-stack-{n}.json").read_text()) for n in names}
    everything = [e for n in names for e in entries[n]]
    common = {k: everything[0][k] for k in ("machine", "date", "commit")}
    flags = [f'{f}="{os.environ[f]}"' for f in FLAGS if f in os.environ]
    common["command"] = " ".join([*flags, "tests/perf/gpu_stack.sh BIN MODEL OUT"])
    added = [e | common for e in idle_entries(out, cases, entries) + extras(out, cases, entries)]
    lines = ",\n".join(json.dumps(e | {"command": common["command"]}) for e in everything + added)
    (out / "gpu-stack.json").write_text(f"[\n{lines}\n]\n")
    for e in added:
        print(e.get("goal", ""), e["case"], e["value"], e["unit"])


if __name__ == "__main__":
    main()
