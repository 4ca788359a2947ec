#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md and docs/benchmarks/*.md that lie between
`<!-- table NAME -->` and `<!-- end -->`, from the JSON files of docs/benchmarks.

usage: tests/perf/tables.py
"""

import math
import re
import statistics

import part_tables
from bench_files import DOCS, entries, read
from plots import PEER_PREFILL, PEER_STEP, ROOT

CASES = ("1x0", "16x0", "64x0", "1x1", "16x8", "64x8", "64x64")
ASKED_OF_PEER = {"1x0": 1.14, "16x0": 1.14, "64x0": 1.14, "1x1": 1.2, "16x8": 1.29, "64x8": 1.29, "64x64": 1.69}
PEER_TOKENS = {"without": 44000, "with 64 adapters": 32300}  # prefill of 64 x 1024
ASKED_TOKENS = {"without": 1.0, "with 64 adapters": 1.33}


def steps(name):
    """{rows x adapters: {what: entry}} of lora-bench step at context 1024."""
    found = {}
    for case, entry in read(name).items():
        match = re.fullmatch(r"decode rows=(\d+) context=1024 dtype=bf16 (?:base|adapters=(\d+) r=16), (.*)", case)
        if match:
            found.setdefault(f"{match[1]}x{match[2] or 0}", {})[match[3]] = entry
    return {case: found[case] for case in CASES if case in found}


def prefill(name, context=1024):
    """Tokens/s without and with adapters, and the share of the GEMM ceiling."""
    rates, share = {}, None
    for case, entry in read(name).items():
        if match := re.fullmatch(rf"prefill context={context} adapters=(\d+)", case):
            rates["without" if match[1] == "0" else f"with {match[1]} adapters"] = entry["value"]
        elif re.fullmatch(rf"prefill rows=\d+ context={context} base, share of the GEMM ceiling", case):
            share = entry
    return rates, share


def item(label, measured, bound, better="lower", form="{:.2f}"):
    """(label, text, whether it holds). A digit more where rounding would tell otherwise."""

    def holds(number):
        return number <= bound if better == "lower" else number >= bound

    text = form.format(measured)
    if holds(float(text)) != holds(measured):
        text = f"{measured:.4f}"
    return label, text, holds(measured)


def of(label, entry, form="{:.2f}", scale=1):
    return item(label, scale * entry["value"], scale * entry["bound"], entry["better"], form)


def goal(number, what, asked, items, link):
    if not items:
        return f"| {number} | {what} | {asked} | | not measured |"
    short = [label for label, _, holds in items if not holds]
    texts = ", ".join(f"{label} {text}" if label else text for label, text, _ in items)
    word = "reached" if not short else "short" if len(short) == len(items) else f"short: {', '.join(short)}"
    return f"| {number} | {what} | {asked} | {texts} | [{word}](benchmarks/{link}) |"


def operator_goals():
    cases = entries("gpu-lora-decode")
    peers = [e["value"] for e in cases if e.get("goal") == 1 and "mean" not in e["case"]]
    bytes_ = [e["value"] / e["bound"] for e in cases if e.get("goal") == 2 and "mean" not in e["case"]]
    mean = math.exp(statistics.fmean(math.log(max(v, 0.01)) for v in peers))
    within = sum(v <= 1 for v in bytes_)
    yield goal(1, "LoRA in decode, operators: what it adds over the best peer's, where that is known",
               "mean ≤ 0.50, none > 1",
               [item("mean", mean, 0.5), (f"of {len(peers)} above 1:", str(sum(v > 1 for v in peers)), max(peers) <= 1)],
               "operators.md")
    yield goal(2, "the same within 1.35 x its bytes + 1.5 nodes (4 above 64 rows)", "every case",
               [("", f"{within} of {len(bytes_)}; median {statistics.median(bytes_):.1f} x the bound",
                 within == len(bytes_))], "operators.md")
    shares = read("gpu-lora-prefill").values()
    for rank in (16, 64):
        mine = sorted((e for e in shares if e["case"].endswith(f"r={rank}")), key=lambda e: e["value"])
        if mine:
            low, high = 100 * mine[0]["value"], 100 * mine[-1]["value"]
            bound = 100 * mine[0]["bound"]
            yield goal(3, f"LoRA in prefill, r{rank}: share of the layer's GEMMs", f"≤ {bound:.0f} %",
                       [("", f"{low:.0f} to {high:.0f} %", high <= bound + 0.5)], "prefill.md")


def step_goals():
    for model, name in (("8B", "gpu-step-8b"), ("13B", "gpu-step-13b")):
        found = steps(name)
        lora = [of(c, {**e["LoRA - base"], "value": e["LoRA - base"]["value"] / e["LoRA - base"]["bound"], "bound": 1})
                for c, e in found.items() if "LoRA - base" in e]
        yield goal(4, f"decode step, {model}: LoRA - base over its bound", "≤ 1", lora, "decode.md")
    for model, name in (("8B", "gpu-step-8b"), ("13B", "gpu-step-13b")):
        base = [of(c, e["floor / step"]) for c, e in steps(name).items() if c.endswith("x0")]
        yield goal(5, f"decode step without LoRA, {model}: floor / step", "≥ 0.85", base, "decode.md")
    ceilings = [("8B at 1k", prefill("gpu-step-8b")[1]), ("13B at 1k", prefill("gpu-step-13b")[1]),
                ("8B at 8k", prefill("gpu-step-8b-8k", 8192)[1])]
    yield goal(5, "prefill, attention counted, over the GEMM ceiling", "≥ 0.80 at 1k, 0.70 at 8k",
               [of(label, entry) for label, entry in ceilings if entry], "prefill.md")


def path_goals():
    peft = read("gpu-vs-peft")
    yield goal(6, "tokens/s over transformers + PEFT, 8 layers", "≥ 25, ≥ 100",
               [of(re.search(r"rows=(\d+) adapters=(\d+)", c).expand(r"\1x\2"), e, "{:.0f}")
                for c, e in peft.items() if c.startswith("tokens/s over")], "decode.md#beside-transformers--peft")
    yield goal(6, "the same greedy tokens in f32", "all",
               [of(re.search(r"rows=(\d+) adapters=(\d+)", c).expand(r"\1x\2"), e, "{:.3f}")
                for c, e in peft.items() if c.startswith("equal greedy")], "decode.md#beside-transformers--peft")
    idle = [item(c, max(0.0, 100 * e["idle between steps"]["value"]), 1.0) for c, e in steps("gpu-step-8b").items()]
    yield goal(7, "device idle between steps, % (0.1 in a timeline of the worker)", "≤ 1", idle, "decode.md")


def adapter_goals():
    cold = {c.split("dtype=bf16 ")[-1]: e for c, e in read("gpu-cold").items() if e.get("goal") == 8}
    yield goal(8, "a cold adapter beside a pinned copy, a warm one, decode without loads", "≥ 0.90; ≤ 0.15; ≤ 1.03",
               [of(c.split(",")[0], e, "{:.3f}") for c, e in cold.items()],
               "cold-adapters.md")
    trace = [(c, e) for c, e in read("gpu-trace").items() if e.get("goal") == 9]
    for word, what in (("saturation", "1000 adapters over pages for 64, saturation over 8 resident's"),
                       ("p99 first token", "the same, p99 of first tokens at 90 % of it")):
        mine = [of(re.sub(r"trace |adapters=\d+ | over .*", "", c), e) for c, e in trace if word in c]
        bounds = sorted({f"{e['bound']:g}" for c, e in trace if word in c})
        yield goal(9, what, ("≥ " if word == "saturation" else "≤ ") + ", ".join(bounds), mine, "cold-adapters.md")
    unused = [item(c, e["with adapters loaded over without"]["value"], 1.005, form="{:.3f}")
              for c, e in steps("gpu-step-8b").items() if "with adapters loaded over without" in e]
    unused += [item("in the next line's run", e["value"], 1.005, form="{:.3f}") for c, e in
               read("gpu-mixed-ranks").items() if c.endswith("base, with adapters loaded over without")]
    yield goal(10, "base rows in an engine with adapters loaded", "≤ 1.005", unused, "decode.md")
    mixed = [of("", e) for c, e in read("gpu-mixed-ranks").items() if c.endswith("over the sum of each rank's alone")]
    yield goal(10, "ranks 8, 16, 64 mixed over the sum of each alone", "≤ 1.10", mixed, "decode.md")


def group_goals():
    sums = [(re.search(r"ranks=(\d+) KiB=(\d+)", c), e) for c, e in read("gpu-collectives").items()
            if e.get("goal") == 11 and c.endswith("chosen / NCCL")]
    for ranks in sorted({int(m[1]) for m, _ in sums}):
        yield goal(11, f"own all-reduce / NCCL, {ranks} GPUs, KiB", "≤ 0.60, above 512 ≤ 1.0",
                   [of(m[2] + ":", e) for m, e in sums if int(m[1]) == ranks], "tensor-parallel.md")
    calls = {}
    for case, entry in read("gpu-step-8b-tp2").items():
        if match := re.fullmatch(r"ranks=2 replicated decode rows=64 .*?(base|adapters=\d+ r=16), (.*) calls of a step",
                                 case):
            calls.setdefault(match[1], {})[match[2]] = entry["value"]
    added = [sum(v.values()) - sum(calls["base"].values()) for k, v in calls.items() if k != "base"]
    yield goal(11, "collectives that replicated adapters add to a step", "0",
               [item("", v, 0, form="{:.0f}") for v in added[:1]], "tensor-parallel.md")


def peer_goals():
    ours = steps("gpu-step-8b")
    ratios = [item(c, PEER_STEP[c] / e["median"]["value"], ASKED_OF_PEER[c], "higher") for c, e in ours.items()]
    for cases, asked in ((("1x0", "16x0", "64x0"), "≥ 1.14"),
                         (("1x1", "16x8", "64x8", "64x64"), "≥ 1.2, 1.29, 1.29, 1.69")):
        yield goal(15, "decode, best peer's ms / ours", asked, [r for r in ratios if r[0] in cases], "decode.md")
    rates = prefill("gpu-step-8b")[0]
    yield goal(15, "prefill tokens/s, ours / best peer's", "≥ 1.0, ≥ 1.33",
               [item(k, v / PEER_TOKENS[k], ASKED_TOKENS[k], "higher") for k, v in rates.items() if k in PEER_TOKENS],
               "prefill.md")
    stack = read("gpu-stack")
    slots = [of("", e) for c, e in stack.items() if c.endswith("over a peer with slots for 8")]
    yield goal(15, "64 adapters where the peer has 8 slots, output", "≥ 3", slots, "decode.md#the-whole-path")
    yield goal(16, "worker start to first token; graph capture, s", "≤ 12; ≤ 3",
               [of(c.replace("worker start to ", ""), e) for c, e in stack.items() if e.get("goal") == 16],
               "decode.md#the-whole-path")
    yield goal("", "time a token of 64 streams of 8, 64, no adapters / engine alone", "≤ 1.02",
               [of(re.sub(r"streams=64 (adapters=)?|, beside.*", "", c).replace("base", "0") + ":", e, "{:.3f}")
                for c, e in stack.items() if e.get("goal") == "whole path"], "decode.md#the-whole-path")


def goals():
    yield from ("| # | what | asked | measured | |", "|---|---|---|---|---|")
    for part in (operator_goals, step_goals, path_goals, adapter_goals, group_goals):
        yield from part()
    yield "| 12, 13, 14 | shared base prefixes, shares of tenants, KV hand-off | | | not built |"
    yield from peer_goals()


def step_table(name, peers):
    found = steps(name)
    yield "| rows x adapters | ms | floor / step (asked .85) | LoRA - base (bound) |" + (
        " best peer, ms | peer / ours (asked) |" if peers else "")
    yield "|---|---|---|---|" + ("---|---|" if peers else "")
    for case, e in found.items():
        ms, lora = e["median"]["value"], e.get("LoRA - base")
        added = f"{lora['value']:.2f} ({lora['bound']:.2f})" if lora else ""
        line = f"| {case} | {ms:.2f} | {e['floor / step']['value']:.2f} | {added} |"
        peer = PEER_STEP[case]
        yield line + (f" {peer} | {peer / ms:.2f} ({ASKED_OF_PEER[case]}) |" if peers else "")


def prefill_table():
    yield from ("| 64 x 1024, tokens/s | 8B | best peer | ours / peer (asked) | 13B |", "|---|---|---|---|---|")
    small, share = prefill("gpu-step-8b")
    large, share13 = prefill("gpu-step-13b")
    for key in small:
        peer = PEER_TOKENS.get(key)
        told = f"{peer:,} | {small[key] / peer:.2f} ({ASKED_TOKENS[key]})" if peer else " | "
        yield f"| {key} | {small[key]:,.0f} | {told} | {large.get(key, 0):,.0f} |"
    yield ("| share of the GEMM ceiling, attention counted (asked .80) | "
           f"{share['value']:.2f} | 0.78 | | {share13['value']:.2f} |")
    long = prefill("gpu-step-8b-8k", 8192)[1]
    yield f"| the same, 16 x 8192 (asked .70) | {long['value']:.2f} | | | |"


def prefill_lora_table():
    shares = {}
    for case, entry in read("gpu-lora-prefill").items():
        if match := re.search(r"prefill T=(\d+) A=(\d+) r=(\d+)$", case):
            shares[int(match[3]), int(match[1]), int(match[2])] = entry
    adapters = sorted({k[2] for k in shares})
    yield f"| adapters | {' | '.join(map(str, adapters))} | asked | best peer |"
    yield "|---|" + "---|" * (len(adapters) + 2)
    for rank, tokens in sorted({k[:2] for k in shares}):
        mine = [shares[rank, tokens, a] for a in adapters]
        peer = [PEER_PREFILL.get((tokens, a)) for a in adapters] if rank == 16 else []
        told = ", ".join(f"{100 * p:.0f} %" if p else "–" for p in peer)
        cells = " | ".join(f"{100 * e['value']:.0f} %" for e in mine)
        yield f"| r{rank}, {tokens} tokens | {cells} | {100 * mine[0]['bound']:.0f} % | {told} |"


TABLES = {
    "goals": goals,
    "step-8b": lambda: step_table("gpu-step-8b", True),
    "step-13b": lambda: step_table("gpu-step-13b", False),
    "prefill": prefill_table,
    "prefill-lora": prefill_lora_table,
    "path": part_tables.path,
    "unfused": part_tables.unfused,
    "equal-bits": part_tables.equal_bits,
}


def pages():
    return [DOCS / "benchmarks.md", *sorted((DOCS / "benchmarks").glob("*.md"))]


def filled(text):
    return re.sub(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)",
                  lambda m: m[1] + "\n".join(TABLES[m[2]]()) + "\n" + m[3], text, flags=re.S)


def main():
    for page in pages():
        before = page.read_text()
        if (after := filled(before)) != before:
            page.write_text(after)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
