#!/usr/bin/env python3
"""How far transformers + PEFT in bf16 are from the float32 goldens, the worst of each model: of all
logits after a prompt, and of the 32 largest after each token of its answer.

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


def distance(out, reference):
    return ((out - reference).norm() / reference.norm()).item()


def errors(golden, smollm2):
    """Of each prompt: after it, and the worst after a later token."""
    meta = json.loads(golden.read_text())
    tensors = load_file(golden.with_suffix(".safetensors"))
    folder = smollm2 if golden.name.startswith("smollm2") else ROOT / path_of(meta["model"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if meta.get("adapter"):
        model = PeftModel.from_pretrained(model, ROOT / path_of(meta["adapter"]),
                                          autocast_adapter_dtype=False).to(torch.bfloat16)
    model.eval()
    for i in range(len(meta["prompts"])):
        prompt, tokens = (tensors[f"{i}.{name}"].flatten().long() for name in ("prompt", "tokens"))
        with torch.no_grad():
            first = model(prompt[None]).logits[0, -1].float()
            later = model(torch.cat([prompt, tokens])[None, :-1]).logits[0, len(prompt):].float()
        later = later.gather(1, tensors[f"{i}.top_ids"].long())
        yield (distance(first, tensors[f"{i}.logits"].flatten()),
               max(map(distance, later, tensors[f"{i}.top_logits"])))


def main():
    worst = {}
    for golden in sorted((ROOT / "tests/golden").glob("*--*.json")):
        name = golden.name.split("--")[0]
        found = [worst.get(name, (0.0, 0.0)), *errors(golden, pathlib.Path(sys.argv[1]))]
        worst[name] = tuple(map(max, *found))
    for name, (prompt, step) in worst.items():
        print(f"{name} {prompt:.4f} {step:.4f}")


if __name__ == "__main__":
    main()
