"""Tables of the page about several GPUs of one host; for tables.py."""

import re

from bench_files import read
from goal_rows import goal, item

MODES = ("replicated", "fully-sharded")
ALONE = "one rank alone of "


def decode(name, prefix, rank=16):
    """{rows x adapters: {what: entry}} of one kind of run at context 1024."""
    found = {}
    pattern = rf"{prefix}decode rows=(\d+) context=1024 dtype=bf16 (?:base|adapters=(\d+) r={rank}), (.*)"
    for case, entry in read(name).items():
        if match := re.fullmatch(pattern, case):
            found.setdefault(f"{match[1]}x{match[2] or 0}", {})[match[3]] = entry
    return found


def in_order(cases):
    def key(case):
        rows, adapters = map(int, case.split("x"))
        return adapters > 0, rows, adapters
    return sorted(cases, key=key)


def lines(cases, rows):
    """A row for each (label, {case: cell}) that has a cell at all."""
    yield f"| rows x adapters | {' | '.join(cases)} |"
    yield "|---|" + "---|" * len(cases)
    for label, cells in rows:
        if cells:
            yield f"| {label} | " + " | ".join(cells.get(case, "") for case in cases) + " |"


def medians(found):
    return {case: what["median"]["value"] for case, what in found.items() if "median" in what}


def told(values, form="{:.2f}"):
    return {case: form.format(value) for case, value in values.items()}


def added(found):
    return {case: f"{what['LoRA - base']['value']:.2f} ({what['LoRA - base']['bound']:.2f})"
            for case, what in found.items() if "LoRA - base" in what}


def floors(found):
    return {case: f"{what['floor / step']['value']:.2f}" for case, what in found.items() if "floor / step" in what}


def steps(name, ranks=2):
    """One GPU, `ranks` of them in both modes, one rank's share alone."""
    few = {2: "two", 4: "four"}[ranks]
    whole, parts = (decode(name, f"ranks={ranks} {mode} ") for mode in MODES)
    one, alone = medians(decode(name, "")), medians(decode(name, f"{ALONE}{ranks} replicated "))
    many, sharded = medians(whole), medians(parts)
    by_parts = {case: ms for case, ms in sharded.items() if not case.endswith("x0")}
    yield from lines(in_order({*one, *many, *sharded}), [
        ("one GPU, ms", told(one)),
        (f"{few}, replicated, ms", told(many)),
        (f"one / {few}", told({c: one[c] / many[c] for c in many if c in one})),
        (f"floor / step of {few} (asked 0.85 of the base)", floors(whole)),
        ("LoRA - base (bound)", added(whole)),
        (f"{few}, fully sharded, ms", told(by_parts)),
        (f"one / {few}", told({c: one[c] / by_parts[c] for c in by_parts if c in one})),
        ("LoRA - base (bound)", added(parts)),
        (f"one rank of {few} alone, replicated, ms", told(alone)),
        ("of a step collectives and waits, %",
         told({c: 100 * (1 - alone[c] / many[c]) for c in many if c in alone}, "{:.0f}"))])


def steps_r64(name):
    whole, parts = (decode(name, f"ranks=2 {mode} ", 64) for mode in MODES)
    cases = [c for c in in_order({*whole, *parts}) if not c.endswith("x0")]
    yield from lines(cases, [
        ("r64 on two, replicated, ms", told(medians(whole))), ("LoRA - base (bound)", added(whole)),
        ("fully sharded, ms", told(medians(parts))), ("LoRA - base (bound)", added(parts))])


def share_70b():
    whole, parts = (decode("gpu-step-70b-share", f"{ALONE}8 {mode} ") for mode in MODES)
    sharded = {case: what for case, what in parts.items() if not case.endswith("x0")}
    yield from lines(in_order({*whole, *parts}), [
        ("replicated, ms", told(medians(whole))), ("floor / step (asked 0.85 of the base)", floors(whole)),
        ("LoRA - base (bound)", added(whole)), ("fully sharded, ms", told(medians(sharded))),
        ("LoRA - base (bound)", added(sharded))])


def sums():
    found = {}
    for case, entry in read("gpu-collectives").items():
        if match := re.fullmatch(r"all-reduce bf16 ranks=(\d+) KiB=(\d+) (.*)", case):
            found.setdefault(match[1], {}).setdefault(match[3], {})[int(match[2])] = entry["value"]
    sizes = sorted(found["2"]["chosen"])
    yield f"| bf16 in a graph, KiB | {' | '.join(map(str, sizes))} |"
    yield "|---|" + "---|" * len(sizes)
    for ranks, what in found.items():
        for label, key, form in (("ours, µs", "chosen", "{:.1f}"), ("NCCL, µs", "NCCL", "{:.1f}"),
                                 ("ratio (bound 0.60 up to 512, then 1.0)", "chosen / NCCL", "{:.2f}")):
            cells = " | ".join(form.format(what[key][size]) for size in sizes)
            yield f"| {ranks} GPUs: {label} | {cells} |"


def prefill():
    """Tokens/s of 64 x 1024."""
    columns = ["one GPU", *(f"{few}, {mode.replace('-', ' ')}" for few in ("two", "four") for mode in MODES)]
    yield f"| 64 x 1024, tokens/s | {' | '.join(columns)} |"
    yield "|---|" + "---|" * len(columns)
    for model in ("8b", "13b", "70b"):
        entries = {case: entry for ranks in (4, 2) if model != "70b" or ranks == 4
                   for case, entry in read(f"gpu-step-{model}-tp{ranks}").items()}
        for adapters in (0, 8, 64):
            cases = [f"{prefix}prefill context=1024 adapters={adapters}"
                     for prefix in ("", *(f"ranks={ranks} {mode} " for ranks in (2, 4) for mode in MODES))]
            cells = [f"{entries[case]['value']:,.0f}" if case in entries else "" for case in cases]
            if any(cells):
                yield f"| {model.upper()}, {adapters or 'no'} adapters | {' | '.join(cells)} |"


def exchanged():
    """Collectives of a step of 8B at 64 rows, and what a rank holds of an adapter."""
    yield from ("| 8B, 64 rows | all-reduces | gathers | broadcasts | an r16 adapter's part on a rank |",
                "|---|---|---|---|---|")
    for ranks, few in ((2, "two"), (4, "four")):
        for label, mode, case in ((f"{few}, no adapters", "replicated", "64x0"),
                                  (f"{few}, 8 adapters, replicated", "replicated", "64x8"),
                                  (f"{few}, 8, fully sharded (bound {1.15 / ranks:.3f})", "fully-sharded", "64x8")):
            what = decode(f"gpu-step-8b-tp{ranks}", f"ranks={ranks} {mode} ").get(case, {})
            calls = [f"{what[f'{op} calls of a step']['value']:.0f}" if f"{op} calls of a step" in what else ""
                     for op in ("allreduce", "allgather", "broadcast")]
            part = what.get("a rank's part of an adapter of r=16")
            yield f"| {label} | {' | '.join(calls)} | {'%.4f' % part['value'] if part else ''} |"


RUNS = ((2, "8b", "8B on two"), (4, "8b", "8B on four"), (2, "13b", "13B on two"), (4, "13b", "13B on four"),
        (4, "70b", "70B on four"))


def span(label, values, bound, better="lower", form="{:.2f}"):
    """From the least to the most; the worse of the two is held against the bound."""
    ends = [item("", value, bound, better, form) for value in (min(values), max(values))]
    return label, " to ".join(text for _, text, _ in ends), all(holds for *_, holds in ends)


def goals():
    """Rows of the table of goals: what steps of several ranks reach."""
    def spans(mode, of_case, bound, better="lower", form="{:.2f}"):
        for ranks, model, label in RUNS:
            found = decode(f"gpu-step-{model}-tp{ranks}", f"ranks={ranks} {mode} ")
            values = [value for cells in found.values() if (value := of_case(cells)) is not None]
            yield span(label, values, bound, better, form)

    def base(what):
        return lambda cells: cells[what]["value"] if what in cells and "LoRA - base" not in cells else None

    def added_over_bound(cells):
        lora = cells.get("LoRA - base")
        return lora and lora["value"] / lora["bound"]

    yield goal(5, "several GPUs, base rows: floor / step", "≥ 0.85",
               list(spans("replicated", base("floor / step"), 0.85, "higher")), "tensor-parallel.md")
    yield goal(10, "several GPUs, base rows with adapters loaded", "≤ 1.005",
               list(spans("replicated", base("with adapters loaded over without"), 1.005,
                          form="{:.3f}")), "tensor-parallel.md")
    for mode in MODES:
        yield goal(4, f"several GPUs, {mode.replace('-', ' ')}: LoRA - base over its bound", "≤ 1",
                   list(spans(mode, added_over_bound, 1)), "tensor-parallel.md")
    added = [item(label, e["value"], 0, form="{:.0f}")
             for ranks, model, label in RUNS for case, e in read(f"gpu-step-{model}-tp{ranks}").items()
             if case.startswith(f"ranks={ranks} replicated decode rows=64") and "adapters=8 " in case
             and case.endswith("r=16, collective calls that adapters add")]
    yield goal(11, "collectives that replicated adapters add to a step", "0", added, "tensor-parallel.md")
