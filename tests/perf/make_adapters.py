#!/usr/bin/env python3
"""Writes random PEFT adapters for a Llama-like config.json, for benchmarks.

Needs torch and safetensors: python3 make_adapters.py MODEL_DIR OUT_DIR --count 8 --rank 16 [--modules q_proj v_proj]
"""

import argparse
import concurrent.futures
import json
import os
import pathlib

import torch
from safetensors.torch import save_file


def shapes(config):
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q = config["num_attention_heads"] * head_dim
    kv = config["num_key_value_heads"] * head_dim
    return {
        "self_attn.q_proj": (hidden, q), "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv), "self_attn.o_proj": (q, hidden),
        "mlp.gate_proj": (hidden, ffn), "mlp.up_proj": (hidden, ffn),
        "mlp.down_proj": (ffn, hidden),
    }


def tensors(config, rank, modules, generator):
    out = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (inputs, outputs) in shapes(config).items():
            if module.split(".")[1] not in modules:
                continue
            prefix = f"base_model.model.model.layers.{layer}.{module}.lora_"
            a = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            b = torch.randn(outputs, rank, generator=generator) * 0.05
            out[prefix + "A.weight"] = a.to(torch.bfloat16)
            out[prefix + "B.weight"] = b.to(torch.bfloat16)
    return out


def write(config, folder, rank, modules, seed):
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    save_file(tensors(config, rank, modules, generator), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": rank,
        "target_modules": modules}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--modules", nargs="+", default=[
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(write, [config] * args.count,
                      [args.out / f"a{i}" for i in range(args.count)],
                      [args.rank] * args.count, [args.modules] * args.count, range(args.count)))


if __name__ == "__main__":
    main()
