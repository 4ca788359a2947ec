"""Tables of the pages about the whole path, operators and equal bits; for tables.py."""

import math
import re
import statistics

from bench_files import entries, read


def path():
    """gpu_stack.sh: a column for the base rows of each run and for each count of adapters."""
    columns = {}
    group = []
    for entry in entries("gpu-stack"):
        case, value = entry["case"], entry["value"]
        if match := re.fullmatch(r"streams=64 prompt=1024 (base|adapters=\d+), (.*)", case):
            if match[1] == "base" and match[2] == "decode":
                group.append({})
            runs = group[-1].setdefault("base", {}) if match[1] == "base" else columns.setdefault(match[1], {})
            runs[match[2]] = value
        elif match := re.fullmatch(r"streams=64 (base|adapters=\d+), beside (\d+) adapters, (.*)", case):
            beside = list(columns).index(f"adapters={match[2]}")
            runs = group[beside]["base"] if match[1] == "base" else columns[match[1]]
            runs[match[3]] = value
    base = [g["base"] for g in group]
    peers = {"adapters=8": "8.97", "adapters=64": "14.2"}
    yield f"| | base | {' | '.join(c.removeprefix('adapters=') + ' adapters' for c in columns)} |"
    yield "|---|" + "---|" * (1 + len(columns))
    for label, what, form in (("ms a token of a stream", "time a token", "{:.2f}"),
                              ("`lora-bench step` in the same run, mean context 1088 too", "lora-bench step", "{:.2f}"),
                              ("over it (bound 1.02)", "time a token over lora-bench step", "{:.3f}"),
                              (None, None, None),
                              ("all 64 first tokens, s", "last first token", "{:.2f}"),
                              ("output of all, prompts included, tokens/s", "output", "{:.0f}")):
        if label is None:
            yield f"| peers' whole engines, ms a token | 7.58 | {' | '.join(peers.get(c, '') for c in columns)} |"
            continue
        scale = 1e-3 if what == "last first token" else 1
        cells = [", ".join(dict.fromkeys(form.format(scale * b[what]) for b in base if what in b))]
        cells += [form.format(scale * runs[what]) if what in runs else "" for runs in columns.values()]
        yield f"| {label} | {' | '.join(cells)} |"


def unfused():
    """Geometric means over sites and adapters of what LoRA adds, ours over cuBLASLt's."""
    found = {}
    for case, entry in read("gpu-ops").items():
        if match := re.fullmatch(r"\w+ T=(\d+) A=\d+ r=(\d+), over cuBLAS unfused", case):
            found.setdefault((int(match[2]), int(match[1])), []).append(entry["value"])
    tokens = sorted({k[1] for k in found})
    yield f"| tokens | {' | '.join(map(str, tokens))} | worst |"
    yield "|---|" + "---|" * (len(tokens) + 1)
    for rank in sorted({k[0] for k in found}):
        means = [math.exp(statistics.fmean(math.log(max(v, 1e-3)) for v in found[rank, t])) for t in tokens]
        worst = max(max(found[rank, t]) for t in tokens)
        yield f"| r{rank} | {' | '.join(f'{m:.2f}' for m in means)} | {worst:.1f} |"


def equal_bits():
    """GEMMs of a layer by (n, k) alone and by the fastest tiles for that many rows, µs."""
    found = {}
    for case, entry in read("gpu-equal-bits").items():
        if match := re.match(r"GEMMs of a layer, (\w+), rows=(\d+), (tiles by|the fastest|cost)", case):
            found.setdefault((match[1], int(match[2])), {})[match[3]] = entry["value"]
    yield "| µs a layer | " + " | ".join(f"{model}, {rows} rows" for model, rows in found) + " |"
    yield "|---|" + "---|" * len(found)
    for label, what in (("by (n, k) alone", "tiles by"), ("the fastest for these rows", "the fastest")):
        yield f"| {label} | " + " | ".join(f"{v[what]:.1f}" for v in found.values()) + " |"
    costs = [f"{100 * v['cost']:.1f} %" if v["cost"] > 0 else "none" for v in found.values()]
    yield f"| cost | {' | '.join(costs)} |"


def ceilings():
    """What each bench measured before its figures; files from before it did so have floors of what is given."""
    yield from ("| file | read bandwidth, TB/s | bf16 GEMM, TFLOP/s |", "|---|---|---|")
    for name in ("gpu-step-8b", "gpu-step-13b", "gpu-step-8b-8k", "gpu-mixed-ranks", "gpu-lora-decode",
                 "gpu-lora-decode-13b", "gpu-ops"):
        found = read(name)
        if not found:
            continue
        both = [found.get(case, {}).get("value") for case in ("read bandwidth, 4 GiB", "bf16 GEMM 8192^3")]
        yield f"| {name} | " + (f"{both[0]:.2f} | {both[1]:.0f} |" if all(both) else "4.39 taken | 804 taken |")
