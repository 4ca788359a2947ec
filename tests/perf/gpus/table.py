"""The figures of run.sh's files as lines: `python3 table.py OUT`."""

import json
import pathlib
import re
import sys

out = pathlib.Path(sys.argv[1])


def load(name):
    path = out / f"{name}.json"
    return {e["case"]: e for e in json.loads(path.read_text())} if path.is_file() else {}


def decode_cases(entries):
    """(rows, adapters) -> {what: entry}."""
    found = {}
    for case, entry in entries.items():
        match = re.search(r"decode rows=(\d+) .*?(?:adapters=(\d+)|base).*?, (.+)$", case)
        if match:
            key = int(match[1]), int(match[2] or 0)
            found.setdefault(key, {})[match[3]] = entry
    return found


def step_lines(name):
    shape = name.split("-")[1]
    alone = decode_cases(load(f"step-{shape}-alone"))
    for (rows, adapters), by in sorted(decode_cases(load(name)).items()):
        line = f"{name} {rows}x{adapters}: {by['median']['value']:.3f} ms"
        if "floor / step" in by:
            line += f", floor / step {by['floor / step']['value']:.2f}"
        if "LoRA - base" in by:
            lora = by["LoRA - base"]
            line += f", LoRA - base {lora['value']:.2f} (bound {lora['bound']:.2f})"
        if not name.endswith("alone") and (rows, adapters) in alone:
            share = 1 - alone[rows, adapters]["median"]["value"] / by["median"]["value"]
            line += f", collectives and waits {share:.0%}"
        yield line


def rate(name):
    """Rows a second with adapters."""
    for (rows, adapters), by in decode_cases(load(name)).items():
        if adapters:
            return rows / by["median"]["value"] * 1e3
    return 0


for path in sorted(out.glob("step-*.json")):
    print(*step_lines(path.stem), sep="\n")
for case, entry in load("collectives").items():
    print(f"{case}: {entry['value']:.2f} {entry['unit']}")
halves = rate("groups-half-0") + rate("groups-half-1")
if halves and rate("groups-one"):
    print(f"two groups of half the ranks: {halves:.0f} tokens/s, one of all: "
          f"{rate('groups-one'):.0f}, ratio {halves / rate('groups-one'):.2f}")
