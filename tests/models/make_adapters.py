#!/usr/bin/env python3
"""Writes the adapters of the tiny models: PEFT's own files, filled with numpy's PCG64 values.

Needs torch, transformers and peft (deploy/demo/requirements.txt).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

STRENGTH = 0.7  # standard deviation of a delta over that of the base's weight, roughly

MLP = ["gate_proj", "up_proj", "down_proj"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
QUERY_VALUE = ["q_proj", "v_proj"]


@dataclass(frozen=True)
class TinyAdapter:
    name: str
    model: str
    seed: int
    dtype: torch.dtype  # of the file
    lora: dict[str, Any]  # arguments of LoraConfig


ALL_LINEAR_R3 = {"r": 3, "lora_alpha": 6, "target_modules": "all-linear"}
RSLORA_R16 = {"r": 16, "lora_alpha": 8, "use_rslora": True, "target_modules": QUERY_VALUE}

ADAPTERS = (
    TinyAdapter("llama-r3-all", "tiny-llama-8q2kv", 101, torch.float32, ALL_LINEAR_R3),
    TinyAdapter("llama-r16-qv-rslora", "tiny-llama-8q2kv", 102, torch.bfloat16, RSLORA_R16),
    TinyAdapter("llama3-r3-all", "tiny-llama3-6q3kv", 103, torch.bfloat16, ALL_LINEAR_R3),
    TinyAdapter(
        "llama3-mlp-patterns",
        "tiny-llama3-6q3kv",
        104,
        torch.float32,
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": MLP,
            "rank_pattern": {"down_proj": 7, r"layers\.0\.mlp\.up_proj": 1},
            "alpha_pattern": {"gate_proj": 3, r"layers\.1\.mlp\.down_proj": 21},
        },
    ),
    TinyAdapter("mistral-r3-all", "tiny-mistral-odd", 105, torch.float32, ALL_LINEAR_R3),
    TinyAdapter("mistral-r16-qv-rslora", "tiny-mistral-odd", 106, torch.float16, RSLORA_R16),
    TinyAdapter("qwen2-r3-all", "tiny-qwen2-sharded", 107, torch.bfloat16, ALL_LINEAR_R3),
    TinyAdapter(
        "qwen2-r9-attention-layers",
        "tiny-qwen2-sharded",
        108,
        torch.float32,
        {
            "r": 9,
            "lora_alpha": 9,
            "target_modules": ATTENTION,
            "layers_to_transform": [0, 2],
            "layers_pattern": "layers",
        },
    ),
    TinyAdapter("qwen3-r3-all", "tiny-qwen3-headdim", 109, torch.float32, ALL_LINEAR_R3),
    TinyAdapter("qwen3-r16-qv-rslora", "tiny-qwen3-headdim", 110, torch.float16, RSLORA_R16),
)


def matrix_std(module: torch.nn.Module) -> float:
    return float(module.get_base_layer().weight.std())


@torch.no_grad()
def fill(model: PeftModel, seed: int) -> None:
    """A ~ N(0, 1 / in); B so that the delta's standard deviation is STRENGTH of the base's."""
    random = np.random.Generator(np.random.PCG64(seed))
    layers = [(n, m) for n, m in model.named_modules() if hasattr(m, "lora_A") and m.lora_A]
    for _, module in sorted(layers, key=lambda item: item[0]):
        a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
        rank, width = a.shape
        scale = module.scaling["default"]
        b_std = STRENGTH * matrix_std(module) * np.sqrt(width / rank) / scale
        a.copy_(torch.from_numpy(random.standard_normal(tuple(a.shape)) / np.sqrt(width)))
        b.copy_(torch.from_numpy(random.standard_normal(tuple(b.shape)) * b_std))


def write_adapter(adapter: TinyAdapter, models: Path, directory: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(str(models / adapter.model), dtype=torch.float32)
    base.name_or_path = f"rootstock/{adapter.model}"  # PEFT's base_model_name_or_path
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **adapter.lora))
    fill(model, adapter.seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(adapter.dtype)
    model.save_pretrained(str(directory), save_embedding_layers=False)
    (directory / "README.md").unlink(missing_ok=True)  # PEFT's empty model card


def main() -> int:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=here)
    parser.add_argument("--output", type=Path, default=here / "adapters")
    arguments = parser.parse_args()
    for adapter in ADAPTERS:
        write_adapter(adapter, arguments.models, arguments.output / adapter.name)
        print(arguments.output / adapter.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
