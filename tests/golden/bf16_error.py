#!/usr/bin/env python3
"""How far transformers + PEFT in bf16 are from the float32 goldens: the worst prompt of each model.

Needs torch, transformers and peft: python3 bf16_error.py SMOLLM2_DIR
"""

import json
import pathlib
import sys

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]


def path_of(entry):
    return entry["path"] if isinstance(entry, dict) else entry


def errors(golden, smollm2):
    meta = json.loads(golden.read_text())
    tensors = load_file(golden.with_suffix(".safetensors"))
    folder = smollm2 if golden.name.startswith("smollm2") else ROOT / path_of(meta["model"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if meta.get("adapter"):
        model = PeftModel.from_pretrained(model, ROOT / path_of(meta["adapter"]),
                                          autocast_adapter_dtype=False).to(torch.bfloat16)
    model.eval()
    for i in range(len(meta["prompts"])):
        key = next(k for k in tensors if k.startswith(f"{i}.") and "prompt" in k)
        with torch.no_grad():
            out = model(tensors[key].reshape(1, -1).long()).logits[0, -1].float()
        reference = tensors[f"{i}.logits"].flatten()
        yield ((out - reference).norm() / reference.norm()).item()


def main():
    worst = {}
    for golden in sorted((ROOT / "tests/golden").glob("*--*.json")):
        name = golden.name.split("--")[0]
        worst[name] = max([worst.get(name, 0.0), *errors(golden, pathlib.Path(sys.argv[1]))])
    for name, error in worst.items():
        print(f"{name} {error:.4f}")


if __name__ == "__main__":
    main()
