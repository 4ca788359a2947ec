#!/usr/bin/env python3
"""Decode step time of transformers + PEFT with adapter_names: the peer of `lora-bench step`.

Runs the model in float32 (and, with --dtype bf16, in bfloat16) on the CPUs the process may use:
    taskset -c 0,1 python3 tests/perf/peft_baseline.py --model DIR --adapters DIR... --rows 16
Prints one JSON object: median and p99 milliseconds a decode step, base rows and mixed rows, taken
alternately in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, nargs="+", required=True, help="PEFT directories")
    parser.add_argument("--num-adapters", type=int, default=8, help="copies are loaded to reach it")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--context", type=int, default=128, help="prompt tokens a row")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dummy", action="store_true", help="random weights of config.json")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    return parser.parse_args()


def load(args: argparse.Namespace) -> tuple[PeftModel, list[str]]:
    dtype = torch.float32 if args.dtype == "f32" else torch.bfloat16
    if args.dummy:
        torch.manual_seed(1)
        base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype)
    else:
        base = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    names = [f"a{i}" for i in range(args.num_adapters)]
    paths = [str(args.adapters[i % len(args.adapters)]) for i in range(args.num_adapters)]
    model = PeftModel.from_pretrained(base, paths[0], adapter_name=names[0])
    for name, path in zip(names[1:], paths[1:]):
        model.load_adapter(path, adapter_name=name)
    return model.to(dtype).eval(), names


@torch.inference_mode()
def decode(model: PeftModel, args: argparse.Namespace, adapter_names: list[str]) -> list[float]:
    """Seconds of each decode step after a prefill of `context` tokens a row."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(100, 40000, (args.rows, args.context), generator=generator)
    out = model(input_ids=ids, use_cache=True, adapter_names=adapter_names, logits_to_keep=1)
    seconds = []
    for _ in range(args.steps):
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        begin = time.perf_counter()
        out = model(
            input_ids=token,
            past_key_values=out.past_key_values,
            use_cache=True,
            adapter_names=adapter_names,
        )
        seconds.append(time.perf_counter() - begin)
    return seconds[2:]


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "median_ms": round(statistics.median(ordered) * 1e3, 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99) - 1] * 1e3, 3),
        "tokens_per_s_a_row": round(1 / statistics.median(ordered), 2),
    }


def main() -> None:
    args = parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model, names = load(args)
    cases = {
        "base": ["__base__"] * args.rows,
        "mixed": [names[row % len(names)] for row in range(args.rows)],
    }
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(args.rounds):
        for case, adapter_names in cases.items():
            seconds[case] += decode(model, args, adapter_names)
    print(
        json.dumps(
            {
                "peer": "transformers+peft",
                "dtype": args.dtype,
                "threads": torch.get_num_threads(),
                "rows": args.rows,
                "adapters": args.num_adapters,
                "context": args.context,
                **{case: summary(values) for case, values in seconds.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
