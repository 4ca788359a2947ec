#!/usr/bin/env python3
"""Makes the golden files: greedy answers and logits of transformers + PEFT in float32.

    python3 tests/golden/make_goldens.py --smollm2 "$(python3 deploy/models/smollm2.py)"

Needs torch, transformers, peft, safetensors and tokenizers (deploy/demo/requirements.txt). Weights
are upcast to float32, TF32 is off, attention is the eager one. README.md describes the files.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python3 tests/golden/make_goldens.py --smollm2 SMOLLM2_DIRECTORY"
PACKAGES = ("torch", "transformers", "peft", "safetensors", "tokenizers", "numpy")
STEPS = 64
TOP = 32
MIN_MARGIN = 0.01  # between the top two logits of every step
MAX_CACHE_DIFFERENCE = 1e-3  # between logits with and without a KV cache
MIN_CHANGE = 0.1  # of some logit by the adapter
MIN_DISTINCT = 12  # tokens in an answer: one that repeats itself shows little

SMOLLM2_QUOTA = {"long": 1, "chat": 1, "raw": 1}  # prompts of each kind for the base
ADAPTER_QUOTA = {"chat": 2}
TINY_PROMPTS = 3


class GoldenError(Exception):
    """A golden cannot be made."""


@dataclass(frozen=True)
class Case:
    """One golden: a model with one adapter or none."""

    name: str
    model: Path
    model_label: str
    adapter: Path | None


@dataclass(frozen=True)
class Prompt:
    kind: str
    ids: list[int]
    text: str | None  # none for models without a tokenizer


@dataclass
class Answer:
    """S steps, V tokens in the vocabulary."""

    tokens: np.ndarray  # int32 [S]
    margins: np.ndarray  # float32 [S]
    logits: np.ndarray  # float32 [V], of the last prompt position
    top_ids: np.ndarray  # int32 [S - 1, TOP], of the positions after it
    top_logits: np.ndarray  # float32 [S - 1, TOP]
    cache_difference: float
    change: float  # largest |logit - base's logit|; 0 for the base


# ---- cases and prompts --------------------------------------------------------------------------


def cases(smollm2: Path | None) -> Iterator[Case]:
    if smollm2 is not None:
        label = "SmolLM2-135M-Instruct"
        yield Case("smollm2--base", smollm2, label, None)
        for adapter in sorted((ROOT / "deploy/demo/adapters").iterdir()):
            yield Case(f"smollm2--{adapter.name}", smollm2, label, adapter)
    tiny = ROOT / "tests/models"
    adapters = sorted((tiny / "adapters").iterdir())
    for model in sorted(path for path in tiny.glob("tiny-*") if path.is_dir()):
        label = str(model.relative_to(ROOT))
        yield Case(f"{model.name}--base", model, label, None)
        for adapter in adapters:
            base = json.loads((adapter / "adapter_config.json").read_text())
            if base["base_model_name_or_path"] == f"rootstock/{model.name}":
                yield Case(f"{model.name}--{adapter.name}", model, label, adapter)


def text_prompts(case: Case) -> Iterator[Prompt]:
    """In another order for each adapter, so that adapters see different questions."""
    tokenizer = Tokenizer.from_file(str(case.model / "tokenizer.json"))
    document = json.loads((ROOT / "tests/golden/prompts.json").read_text(encoding="utf-8"))
    questions = document["questions"]
    first = sum(case.name.encode()) % len(questions) if case.adapter else 0
    texts = [("long", text) for text in document["long"]]
    texts += [("raw", text) for text in document["raw"]]
    texts += [
        ("chat", document["template"].replace("{question}", question))
        for question in questions[first:] + questions[:first]
    ]
    for kind, text in texts:
        yield Prompt(kind, tokenizer.encode(text, add_special_tokens=False).ids, text)


def random_prompts(case: Case, vocab: int) -> Iterator[Prompt]:
    seed = int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:8], "little")
    random = np.random.Generator(np.random.PCG64(seed))
    while True:
        length = int(random.integers(2, 70))
        yield Prompt("ids", random.integers(0, vocab, length).tolist(), None)


# ---- the reference ------------------------------------------------------------------------------


def load(case: Case, device: str) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(
        str(case.model), dtype=torch.float32, attn_implementation="eager"
    )
    if case.adapter is not None:
        model = PeftModel.from_pretrained(model, str(case.adapter))
    wrong = {p.dtype for p in model.parameters()} - {torch.float32}
    if wrong:
        raise GoldenError(f"{case.name}: parameters of type {wrong}")
    return model.to(device).eval()


@torch.no_grad()
def all_logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """float32 [len(ids), V], without a cache."""
    return model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0]


@torch.no_grad()
def greedy(model: torch.nn.Module, ids: list[int]) -> tuple[list[int], list[torch.Tensor]] | None:
    """STEPS tokens and the logits they were chosen from; none if two logits ever lie too close.

    End-of-sequence tokens are tokens like others.
    """
    tokens: list[int] = []
    rows: list[torch.Tensor] = []
    fed, cache = ids, None
    while len(tokens) < STEPS:
        output = model(
            input_ids=torch.tensor([fed], device=model.device),
            past_key_values=cache,
            use_cache=True,
        )
        cache, row = output.past_key_values, output.logits[0, -1]
        first, second = torch.topk(row, 2).values.tolist()
        if first - second < MIN_MARGIN:
            return None
        tokens.append(int(row.argmax()))
        rows.append(row)
        fed = tokens[-1:]
    return tokens, rows


def change_by_adapter(model: torch.nn.Module, ids: list[int]) -> float:
    if not isinstance(model, PeftModel):
        return 0.0
    adapted = all_logits(model, ids)
    with model.disable_adapter():
        return float((adapted - all_logits(model, ids)).abs().max())


def answer(model: torch.nn.Module, ids: list[int]) -> Answer | None:
    found = greedy(model, ids)
    if found is None or len(set(found[0])) < MIN_DISTINCT:
        return None
    tokens, rows = found
    cached = torch.stack(rows)
    uncached = all_logits(model, ids + tokens[:-1])[len(ids) - 1 :]
    top = torch.topk(cached, TOP)
    return Answer(
        tokens=np.array(tokens, np.int32),
        margins=(top.values[:, 0] - top.values[:, 1]).cpu().numpy(),
        logits=rows[0].cpu().numpy(),
        top_ids=top.indices[1:].cpu().numpy().astype(np.int32),
        top_logits=top.values[1:].cpu().numpy(),
        cache_difference=float((cached - uncached).abs().max()),
        change=change_by_adapter(model, ids),
    )


# ---- files --------------------------------------------------------------------------------------


def sha256_files(directory: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    files = sorted(path for pattern in patterns for path in directory.glob(pattern))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def adapter_entry(adapter: Path | None) -> dict[str, Any] | None:
    if adapter is None:
        return None
    patterns = ("adapter_config.json", "adapter_model.safetensors")
    return {"path": str(adapter.relative_to(ROOT)), "sha256": sha256_files(adapter, patterns)}


def write(case: Case, chosen: list[tuple[Prompt, Answer]], output: Path, device: str) -> None:
    arrays: dict[str, np.ndarray] = {}
    prompts = []
    for index, (prompt, found) in enumerate(chosen):
        arrays[f"{index}.prompt"] = np.array(prompt.ids, np.int32)
        for name in ("tokens", "margins", "logits", "top_ids", "top_logits"):
            arrays[f"{index}.{name}"] = np.ascontiguousarray(getattr(found, name))
        entry: dict[str, Any] = {"kind": prompt.kind, "num_prompt_tokens": len(prompt.ids)}
        if prompt.text is not None:
            tokenizer = Tokenizer.from_file(str(case.model / "tokenizer.json"))
            entry["prompt"] = prompt.text
            entry["answer"] = tokenizer.decode(found.tokens.tolist(), skip_special_tokens=False)
        entry["min_margin"] = round(float(found.margins.min()), 4)
        entry["cache_difference"] = float(f"{found.cache_difference:.1e}")
        entry["change_by_adapter"] = round(found.change, 2)
        prompts.append(entry)
    save_file(arrays, str(output / f"{case.name}.safetensors"))
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    document = {
        "model": case.model_label,
        "model_sha256": sha256_files(case.model, ("config.json", "model*.safetensors")),
        "adapter": adapter_entry(case.adapter),
        "steps": STEPS,
        "prompts": prompts,
        "versions": {"python": platform.python_version(), **versions},
        "device": device,
        "command": COMMAND,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (output / f"{case.name}.json").write_text(text, encoding="utf-8")


def check(case: Case, found: Answer) -> None:
    if found.cache_difference > MAX_CACHE_DIFFERENCE:
        raise GoldenError(f"{case.name}: logits with a cache differ by {found.cache_difference}")
    if case.adapter is not None and found.change < MIN_CHANGE:
        raise GoldenError(f"{case.name}: the adapter changes logits by {found.change} only")


def make(case: Case, output: Path, device: str) -> None:
    model = load(case, device)
    if (case.model / "tokenizer.json").exists():
        candidates = text_prompts(case)
        quota = dict(ADAPTER_QUOTA if case.adapter else SMOLLM2_QUOTA)
    else:
        candidates = random_prompts(case, model.config.vocab_size)
        quota = {"ids": TINY_PROMPTS}
    chosen: list[tuple[Prompt, Answer]] = []
    tried = 0
    while any(quota.values()):
        prompt = next(candidates, None)
        if prompt is None:
            raise GoldenError(f"{case.name}: too few prompts with a margin of {MIN_MARGIN}")
        if not quota.get(prompt.kind):
            continue
        tried += 1
        found = answer(model, prompt.ids)
        if found is None:
            continue
        check(case, found)
        quota[prompt.kind] -= 1
        chosen.append((prompt, found))
    write(case, chosen, output, device)
    margin = min(float(found.margins.min()) for _, found in chosen)
    print(f"{case.name}: {len(chosen)} of {tried} prompts, margin {margin:.4f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smollm2", type=Path, help="directory of SmolLM2-135M-Instruct")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--only", nargs="*", help="names of goldens (default: all)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        for case in cases(arguments.smollm2):
            if not arguments.only or case.name in arguments.only:
                make(case, arguments.output, arguments.device)
    except (GoldenError, OSError) as error:
        print(f"make_goldens: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
