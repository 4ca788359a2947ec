#!/usr/bin/env python3
"""The ratios of stack_vs_peft.sh's files: OUT_DIR ROUNDS CORES COMMIT -> OUT_DIR/stack-vs-peft.json."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path


def machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def case(results: list[dict], adapters: bool, kind: str) -> float:
    return next(
        r["value"]
        for r in results
        if ("adapters=" in r["case"]) == adapters and r["case"].endswith(f", {kind}")
    )


def entries(out: Path, rounds: int) -> list[dict]:
    found = []

    def keep(name: str, value: float, unit: str, **more) -> None:
        found.append({"case": name, "value": round(value, 3), "unit": unit} | more)

    for number in range(1, rounds + 1):
        dtypes = ("bf16", "f32")
        peers = {d: json.loads((out / f"peft-{d}-{number}.json").read_text()) for d in dtypes}
        rates = {
            (d, kind): peer["rows"] * 1e3 / peer[kind]["median_ms"]
            for d, peer in peers.items()
            for kind in ("base", "mixed")
        }
        best = max(rates[d, "mixed"] for d in dtypes)
        for (dtype, kind), rate in rates.items():
            rows = "base rows" if kind == "base" else "8 adapters"
            keep(f"PEFT {dtype}, {rows}, round {number}", rate, "tokens/s", better="higher")
        for dtype in dtypes:
            ours = json.loads((out / f"ours-{dtype}-{number}.json").read_text())
            base, mixed = case(ours, False, "decode"), case(ours, True, "decode")
            name = f"{dtype} weights, round {number}"
            keep(f"ours, base streams, {name}", base, "tokens/s", better="higher")
            keep(f"ours, 8 adapters, {name}", mixed, "tokens/s", better="higher")
            keep(f"8 adapters over base streams, {name}", base / mixed, "ratio",
                 better="lower", goal="cpu lora", bound=1.2)  # fmt: skip
            keep(f"ours over best PEFT, {name}", mixed / best, "ratio",
                 better="higher", goal="cpu peft", bound=2.0)  # fmt: skip
    return found


def main() -> None:
    out, rounds, cores, commit = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    common = {
        "machine": f"{machine()}, cores {cores}",
        "date": date.today().isoformat(),
        "commit": commit,
        "command": "tests/perf/stack_vs_peft.sh BIN MODEL OUT",
    }
    found = entries(out, rounds)
    lines = ",\n".join(json.dumps(e | common) for e in found)
    (out / "stack-vs-peft.json").write_text(f"[\n{lines}\n]\n")
    for e in found:
        print(f"{e['case']:55} {e['value']:9} {e['unit']}")


if __name__ == "__main__":
    main()
