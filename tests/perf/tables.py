#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md and docs/benchmarks/*.md that lie between
`<!-- table NAME -->` and `<!-- end -->`, from the JSON files of docs/benchmarks.

usage: tests/perf/tables.py
"""

import math
import re
import statistics

import group_tables
import part_tables
from bench_files import DOCS, entries, read
from goal_rows import goal, item, of, span_of
from plots import PEER_PREFILL, PEER_STEP, ROOT

CASES = ("1x0", "16x0", "64x0", "1x1", "16x8", "64x8", "64x64")
ASKED_OF_PEER = {"1x0": 1.14, "16x0": 1.14, "64x0": 1.14, "1x1": 1.2, "16x8": 1.29, "64x8": 1.29, "64x64": 1.69}
PEER_TOKENS = {"without": 44000, "with 64 adapters": 32300}  # prefill of 64 x 1024
ASKED_TOKENS = {"without": 1.0, "with 64 adapters": 1.33}


def stack():
    """{streams x adapters: {what: value}} of gpu_stack.sh, mean context 1088; of cases that ran beside several
    others the mean."""
    found = {}
    for entry in entries("gpu-stack"):
        if match := re.fullmatch(r"streams=(\d+) prompt=1024 (?:base|adapters=(\d+)), (.*)", entry["case"]):
            found.setdefault(f"{match[1]}x{match[2] or 0}", {}).setdefault(match[3], []).append(entry["value"])
    return {case: {what: statistics.fmean(values) for what, values in found[case].items()}
            for case in CASES if case in found}


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


def prefill_path():
    """Tokens/s of 64 prompts of 1024 through the coordinator, without and with adapters."""
    found = stack()
    return {label: found[case]["prefill"] for label, case in (("without", "64x0"), ("with 64 adapters", "64x64"))
            if "prefill" in found.get(case, {})}


def operator_goals():
    cases = entries("gpu-lora-decode")
    peers = [e["value"] for e in cases if e.get("goal") == 1 and "mean" not in e["case"]]
    mean = math.exp(statistics.fmean(math.log(max(v, 0.01)) for v in peers))
    yield goal(1, "LoRA in decode, operators, 8B: what it adds over the best peer's, where that is known",
               "mean ≤ 0.50, none > 1",
               [item("mean", mean, 0.5),
                (f"of {len(peers)} above 1:", str(sum(v > 1 for v in peers)), max(peers) <= 1)],
               "operators.md")
    for model, name in (("8B", "gpu-lora-decode"), ("13B", "gpu-lora-decode-13b")):
        over = [e["value"] / e["bound"] for e in entries(name) if e.get("goal") == 2]
        within = sum(v <= 1 for v in over)
        yield goal(2, f"LoRA in decode, {model}: within 1.35 x its bytes + 1.5 nodes (4 above 64 rows)", "every case",
                   [("", f"{within} of {len(over)}; median {statistics.median(over):.1f} x the bound",
                     within == len(over))] if over else [], "operators.md")
    for model, name in (("8B", "gpu-lora-prefill"), ("13B", "gpu-lora-prefill-13b")):
        for rank, bound in ((16, 5), (64, 8)):
            mine = [100 * e["value"] for c, e in read(name).items() if c.endswith(f"r={rank}")]
            yield goal(3, f"LoRA in prefill, {model}, r{rank}: share of the layer's GEMMs", f"≤ {bound} %",
                       [span_of("", mine, bound)] if mine else [], "prefill.md")


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
    measured = [(c, e) for c, e in read("gpu-stack").items() if e.get("goal") == 7]
    idle = [item(re.sub(r"streams=(\d+), base and adapters=(\d+) .*", r"\1x\2", c), 100 * e["value"], 1.0)
            for c, e in measured if "come and go" not in c]
    yield goal(7, "device idle between decode steps, through the coordinator, %", "≤ 1", idle,
               "decode.md#the-whole-path")
    idle = [item("all steps" if "decode" not in c else "before steps that only decode", 100 * e["value"], 1.0)
            for c, e in measured if "come and go" in c]
    yield goal(7, "the same while streams come and go, 64 over 64 adapters", "≤ 1", idle, "decode.md#the-whole-path")
    alone = []
    for label, name in (("8B", "gpu-step-8b"), ("13B", "gpu-step-13b"), ("mixed ranks", "gpu-mixed-ranks"),
                        ("8B on two", "gpu-step-8b-tp2"), ("13B on two", "gpu-step-13b-tp2"),
                        ("8B on four", "gpu-step-8b-tp4"), ("13B on four", "gpu-step-13b-tp4"),
                        ("70B on four", "gpu-step-70b-tp4"), ("70B's share", "gpu-step-70b-share")):
        values = [100 * e["value"] for c, e in read(name).items() if c.endswith("idle between steps")]
        alone += [span_of(label, values, 1.0, "{:.1f}", "")] if values else []
    yield goal("", "the engine alone: share of a step beyond its forward pass, sampling counted, %", "≤ 1", alone,
               "decode.md")


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
    unused = [item(label + c, e["with adapters loaded over without"]["value"], 1.005, form="{:.3f}")
              for label, name in (("", "gpu-step-8b"), ("13B ", "gpu-step-13b"))
              for c, e in steps(name).items() if "with adapters loaded over without" in e]
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
    yield from group_tables.goals()


def peer_goals():
    ours = stack()
    ratios = [item(c, PEER_STEP[c] / e["time a token"], ASKED_OF_PEER[c], "higher") for c, e in ours.items()]
    for cases, asked in ((("1x0", "16x0", "64x0"), "≥ 1.14"),
                         (("1x1", "16x8", "64x8", "64x64"), "≥ 1.2, 1.29, 1.29, 1.69")):
        yield goal(15, "decode through the coordinator, best peer's ms / ours", asked,
                   [r for r in ratios if r[0] in cases], "decode.md#the-whole-path")
    yield goal(15, "prefill through the coordinator, tokens/s, ours / best peer's", "≥ 1.0, ≥ 1.33",
               [item(k, v / PEER_TOKENS[k], ASKED_TOKENS[k], "higher") for k, v in prefill_path().items()],
               "prefill.md")
    measured = read("gpu-stack")
    slots = [of("", e) for c, e in measured.items() if c.endswith("over a peer with slots for 8")]
    yield goal(15, "64 adapters where the peer has 8 slots, output", "≥ 3", slots, "decode.md#the-whole-path")
    yield goal(16, "worker start to first token; graph capture, s", "≤ 12; ≤ 3",
               [of(c.replace("worker start to ", ""), e) for c, e in measured.items() if e.get("goal") == 16],
               "decode.md#the-whole-path")
    yield goal("", "time a token of 64 streams of 8, 64, no adapters / engine alone", "≤ 1.02",
               [of(re.sub(r"streams=64 (adapters=)?|, beside.*", "", c).replace("base", "0") + ":", e, "{:.3f}")
                for c, e in measured.items() if e.get("goal") == "whole path"], "decode.md#the-whole-path")


def goals():
    yield from ("| # | what | asked | measured | |", "|---|---|---|---|---|")
    for part in (operator_goals, step_goals, path_goals, adapter_goals, group_goals):
        yield from part()
    yield "| 12, 13, 14 | shared base prefixes, shares of tenants, KV hand-off | | | not built |"
    yield from peer_goals()


def step_table(name):
    yield from ("| rows x adapters | ms | floor / step (asked .85) | LoRA - base (bound) |", "|---|---|---|---|")
    for case, e in steps(name).items():
        ms, lora = e["median"]["value"], e.get("LoRA - base")
        added = f"{lora['value']:.2f} ({lora['bound']:.2f})" if lora else ""
        yield f"| {case} | {ms:.2f} | {e['floor / step']['value']:.2f} | {added} |"


def peer_table():
    yield from ("| streams x adapters | ms a token | best peer, ms | peer / ours (asked) |", "|---|---|---|---|")
    for case, e in stack().items():
        ms, peer, asked = e["time a token"], PEER_STEP[case], ASKED_OF_PEER[case]
        yield f"| {case} | {ms:.2f} | {peer} | {item('', peer / ms, asked, 'higher')[1]} ({asked}) |"


def prefill_table():
    yield from ("| 64 x 1024, tokens/s | 8B | through the coordinator | best peer | that / peer (asked) | 13B |",
                "|---|---|---|---|---|---|")
    small, share = prefill("gpu-step-8b")
    large, share13 = prefill("gpu-step-13b")
    for key in small:
        peer, path = PEER_TOKENS.get(key), prefill_path().get(key)
        told = f"{peer:,}" if peer else ""
        ratio = f"{path / peer:.2f} ({ASKED_TOKENS[key]})" if peer and path else ""
        yield (f"| {key} | {small[key]:,.0f} | {f'{path:,.0f}' if path else ''} | {told} | {ratio} | "
               f"{large.get(key, 0):,.0f} |")
    yield ("| share of the GEMM ceiling, attention counted (asked .80) | "
           f"{share['value']:.2f} | | 0.78 | | {share13['value']:.2f} |")
    long = prefill("gpu-step-8b-8k", 8192)[1]
    yield f"| the same, 16 x 8192 (asked .70) | {long['value']:.2f} | | | | |"


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
    "step-8b": lambda: step_table("gpu-step-8b"),
    "step-13b": lambda: step_table("gpu-step-13b"),
    "peers": peer_table,
    "ceilings": part_tables.ceilings,
    "prefill": prefill_table,
    "prefill-lora": prefill_lora_table,
    "path": part_tables.path,
    "unfused": part_tables.unfused,
    "equal-bits": part_tables.equal_bits,
    "sums": group_tables.sums,
    "group-8b": lambda: group_tables.steps("gpu-step-8b-tp2"),
    "group-8b-r64": lambda: group_tables.steps_r64("gpu-step-8b-tp2"),
    "group-13b": lambda: group_tables.steps("gpu-step-13b-tp2"),
    "four-8b": lambda: group_tables.steps("gpu-step-8b-tp4", 4),
    "four-13b": lambda: group_tables.steps("gpu-step-13b-tp4", 4),
    "four-70b": lambda: group_tables.steps("gpu-step-70b-tp4", 4),
    "share-70b": group_tables.share_70b,
    "group-prefill": group_tables.prefill,
    "exchanged": group_tables.exchanged,
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
