#!/usr/bin/env python3
"""Draws docs/benchmarks/plots/*.svg from the JSON files beside them (standard library only).

usage: tests/perf/plots.py [DIR_OF_JSON_FILES]
"""

import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLOURS = ("#2f6f4f", "#c9a227", "#7a8b99", "#a4508b")
HEIGHT, TOP, BASE, LEFT = 250, 46, 40, 52
STEPS = (1, 2, 4, 5, 10, 20, 25, 50, 100, 200, 500, 1000)

# Best peer, ms a step: whole engines of vLLM 0.26 and SGLang 0.5.17, mean context 1088.
PEER_STEP = {"1x0": 4.83, "16x0": 5.51, "64x0": 7.58, "1x1": 5.28, "16x8": 6.51, "64x8": 8.97, "64x64": 14.2}
# Best peer kernels, share that LoRA of r16 adds to the layer's GEMMs, by (tokens, adapters).
PEER_PREFILL = {(2048, 1): 0.20, (2048, 16): 0.21, (8192, 4): 0.16}


def text(x, y, content, size=11, anchor="middle", fill="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{content}</text>'


def panel(x0, width, title, groups, series, bounds=None, number="{:.1f}"):
    """Grouped bars: series is [(name, [value or None of each group])], bounds [value or None]."""
    values = [v for _, row in series for v in row if v is not None] + [b for b in bounds or [] if b is not None]
    step = next(s for s in STEPS if s * 5 >= max(values))
    lines = math.ceil(max(values) / step)
    top = max(values) * 1.12
    floor = HEIGHT - BASE
    scale = (floor - TOP) / top
    slot = (width - LEFT) / len(groups)
    bar = slot * 0.8 / len(series)
    out = [text(x0 + LEFT, 16, title, 13, "start", "#111")]
    at = x0 + LEFT
    for index, (name, _) in enumerate(series):
        out.append(f'<rect x="{at}" y="25" width="10" height="10" fill="{COLOURS[index]}"/>')
        out.append(text(at + 14, 34, name, 11, "start"))
        at += 26 + 6.2 * len(name)
    if bounds:
        out.append(f'<line x1="{at}" x2="{at + 14}" y1="30" y2="30" stroke="#b00" stroke-width="2"/>')
        out.append(text(at + 18, 34, "asked", 11, "start"))
    for line in range(lines + 1):
        y = floor - step * line * scale
        if y < TOP:
            break
        out.append(f'<line x1="{x0 + LEFT}" x2="{x0 + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(text(x0 + LEFT - 5, y + 4, f"{step * line:g}", 10, "end"))
    for g, group in enumerate(groups):
        start = x0 + LEFT + g * slot + slot * 0.1
        for s, (_, row) in enumerate(series):
            if row[g] is None:
                continue
            high = row[g] * scale
            x = start + s * bar
            out.append(f'<rect x="{x:.1f}" y="{floor - high:.1f}" width="{bar * 0.92:.1f}" '
                       f'height="{high:.1f}" fill="{COLOURS[s]}"/>')
            out.append(text(x + bar * 0.46, floor - high - 3, number.format(row[g]), 9))
        if bounds and bounds[g] is not None:
            y = floor - bounds[g] * scale
            out.append(f'<line x1="{start:.1f}" x2="{start + slot * 0.8:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
                       'stroke="#b00" stroke-width="2"/>')
        out.append(text(start + slot * 0.4, floor + 15, group))
    return out


def write(path, width, parts):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
            f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif">')
    background = f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>'
    path.write_text("\n".join([head, background, *parts, "</svg>"]) + "\n")


def entries(folder, name):
    return {e["case"]: e for e in json.loads((folder / name).read_text())}


def decode_step(folder, out):
    ours = {}
    for case, entry in entries(folder, "gpu-stack.json").items():
        match = re.fullmatch(r"streams=(\d+) prompt=1024 (?:base|adapters=(\d+)), time a token", case)
        if match:
            ours[f"{match[1]}x{match[2] or 0}"] = entry["value"]
    groups = [g for g in PEER_STEP if g in ours]
    series = [("ours", [ours[g] for g in groups]), ("best of vLLM and SGLang", [PEER_STEP[g] for g in groups])]
    write(out / "decode-step.svg", 640,
          panel(0, 630, "8B, ms a token of a stream, streams x adapters of r16", groups, series, number="{:.2f}"))


def prefill_lora(folder, out):
    shares, bounds = {}, {}
    for case, entry in entries(folder, "gpu-lora-prefill.json").items():
        match = re.search(r"prefill T=(\d+) A=(\d+) r=(\d+)$", case)
        if match:
            tokens, adapters, rank = map(int, match.groups())
            shares[rank, tokens, adapters] = 100 * entry["value"]
            bounds[rank] = 100 * entry["bound"]
    parts = []
    for index, rank in enumerate((16, 64)):
        keys = sorted(k[1:] for k in shares if k[0] == rank)
        series = [("ours", [shares[rank, *k] for k in keys])]
        if rank == 16:
            series.append(("best peer", [100 * PEER_PREFILL[k] if k in PEER_PREFILL else None for k in keys]))
        title = f"r{rank}: % that LoRA adds to the GEMMs of prefill"
        parts += panel(index * 400, 390, title, [f"{t // 1024}k, {a}" for t, a in keys], series,
                       [bounds[rank]] * len(keys), "{:.0f}")
    parts.append(text(400, HEIGHT - 6, "tokens, adapters"))
    write(out / "prefill-lora.svg", 800, parts)


def trace(folder, out):
    found = entries(folder, "gpu-trace.json")
    who = ("8 resident", "1000 alpha=1", "1000 alpha=0.3")
    names = ("8 resident", "1000, alpha 1", "1000, alpha 0.3")

    def values(pattern):
        return [found[pattern.format(f"adapters={w}")]["value"] for w in who]

    saturation = values("trace {}, saturation")
    parts = panel(0, 320, "Saturation, requests a second", names, [("adapters", saturation)],
                  [None] + [0.95 * saturation[0]] * 2)
    p99 = [values("trace cv=%d {}, p99 first token" % cv) for cv in (1, 4)]
    parts += panel(340, 420, "p99 of first tokens at 90 % of it, ms", ("cv 1", "cv 4"),
                   [(name, [p99[0][i], p99[1][i]]) for i, name in enumerate(names)],
                   [1.5 * p99[0][0], 1.5 * p99[1][0]], "{:.0f}")
    write(out / "trace.svg", 770, parts)


def draw(folder, out):
    for plot in (decode_step, prefill_lora, trace):
        plot(folder, out)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/benchmarks"
    out = folder / "plots"
    out.mkdir(exist_ok=True)
    draw(folder, out)


if __name__ == "__main__":
    main()
