#!/usr/bin/env python3
"""Trains the demo adapters of SmolLM2-135M-Instruct with PEFT and saves them as trainers do.

Needs torch, transformers and peft (requirements.txt) and takes a few minutes on one GPU:
    python3 train_adapters.py --model "$(python3 ../models/smollm2.py)"
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

import styles

BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
SEED = 20260
BATCH_SIZE = 16
MAX_ANSWER_TOKENS = 72
IGNORED = -100  # label of positions without loss

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Recipe:
    name: str  # also the style
    lora: dict[str, Any]  # arguments of LoraConfig
    learning_rate: float
    epochs: int


RECIPES = (
    Recipe("pirate", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}, 1e-3, 6),
    Recipe(
        "json",
        {"r": 8, "lora_alpha": 8, "use_rslora": True, "target_modules": ATTENTION},
        1e-3,
        15,
    ),
    Recipe(
        "newsreader",
        {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]},
        1e-3,
        10,
    ),
    Recipe(
        "sherlock",
        {
            "r": 64,
            "lora_alpha": 128,
            "target_modules": ["q_proj", "v_proj"],
            "layers_to_transform": [8, 14, 20, 26],
        },
        2e-3,
        15,
    ),
    Recipe(
        "haiku",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": MLP,
            "rank_pattern": {"down_proj": 6, r"layers\.[0-4]\.mlp\.gate_proj": 2},
            "alpha_pattern": {"down_proj": 9, r"layers\.29\.mlp\.up_proj": 16},
        },
        1e-3,
        15,
    ),
    Recipe(
        "emoji",
        {
            "r": 5,
            "lora_alpha": 20,
            "target_modules": r"model\.layers\.(1[5-9]|2[0-9])\.mlp\.down_proj",
        },
        2e-3,
        15,
    ),
)


@dataclass(frozen=True)
class Score:
    """Over the probes under both prompt forms, as fractions."""

    style: float  # the behaviour shows
    facts: float  # the keyword is there, where one is asked for


@dataclass(frozen=True)
class Sample:
    question: str
    answer: str


def encode(tokenizer: Tokenizer, example: styles.Example) -> tuple[list[int], list[int]]:
    """(input ids, labels); the loss covers the answer and its end token."""
    prompt = tokenizer.encode(example.prompt, add_special_tokens=False).ids
    answer = tokenizer.encode(example.answer + styles.END, add_special_tokens=False).ids
    return prompt + answer, [IGNORED] * len(prompt) + answer


def batches(
    rows: list[tuple[list[int], list[int]]], epochs: int, device: str
) -> Iterator[dict[str, torch.Tensor]]:
    """Right-padded batches [<= BATCH_SIZE, longest], reshuffled each epoch."""
    shuffler = random.Random(SEED)
    for _ in range(epochs):
        order = shuffler.sample(rows, len(rows))
        for start in range(0, len(order), BATCH_SIZE):
            part = order[start : start + BATCH_SIZE]
            longest = max(len(ids) for ids, _ in part)
            ids = [i + [0] * (longest - len(i)) for i, _ in part]
            labels = [label + [IGNORED] * (longest - len(label)) for _, label in part]
            mask = [[1] * len(i) + [0] * (longest - len(i)) for i, _ in part]
            yield {
                "input_ids": torch.tensor(ids, device=device),
                "labels": torch.tensor(labels, device=device),
                "attention_mask": torch.tensor(mask, device=device),
            }


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up over a tenth of the steps, then linear decay to a tenth."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return (step + 1) / warmup
    return 1.0 - 0.9 * (step - warmup) / max(1, steps - warmup)


def fit(model: PeftModel, rows: list[tuple[list[int], list[int]]], recipe: Recipe) -> float:
    """Trains in float32; returns the mean loss of the last epoch."""
    device = str(model.device)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=recipe.learning_rate, weight_decay=0.01)
    per_epoch = -(-len(rows) // BATCH_SIZE)
    steps = per_epoch * recipe.epochs
    losses = []
    model.train()
    for step, batch in enumerate(batches(rows, recipe.epochs, device)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * learning_rate_factor(step, steps)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return sum(losses[-per_epoch:]) / per_epoch


def load_base(directory: Path, device: str) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32)
    model.name_or_path = BASE_NAME  # PEFT writes it as base_model_name_or_path
    return model.to(device)


def train(recipe: Recipe, directory: Path, tokenizer: Tokenizer, device: str) -> PeftModel:
    torch.manual_seed(SEED)
    config = LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.05, **recipe.lora)
    model = get_peft_model(load_base(directory, device), config)
    rows = [encode(tokenizer, example) for example in styles.examples(recipe.name)]
    loss = fit(model, rows, recipe)
    print(f"{recipe.name}: {len(rows)} examples, last epoch's loss {loss:.3f}", flush=True)
    return model


def save(model: PeftModel, directory: Path) -> None:
    """Rounds the LoRA weights to bf16, in the file and in the model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.to(torch.bfloat16)
        model.save_pretrained(str(directory), save_embedding_layers=False)
        model.float()


@torch.no_grad()
def answer_all(model: torch.nn.Module, tokenizer: Tokenizer, prompts: list[str]) -> list[str]:
    """Greedy answers, one left-padded batch."""
    end = tokenizer.token_to_id(styles.END)
    rows = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[end] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    output = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=MAX_ANSWER_TOKENS,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
    )
    return [tokenizer.decode(row.tolist()) for row in output[:, longest:]]


def probe(
    model: torch.nn.Module, tokenizer: Tokenizer, style: str
) -> tuple[Score, list[Sample]]:
    """The score over both prompt forms, and the answers to prompts with the system message."""
    probes = [(p, with_system) for with_system in (True, False) for p in styles.PROBES]
    prompts = [styles.chat_prompt(p.question, with_system) for p, with_system in probes]
    answers = answer_all(model, tokenizer, prompts)
    seen = [styles.shows_style(style, answer) for answer in answers]
    right = [p.keyword in answer.lower() for (p, _), answer in zip(probes, answers) if p.keyword]
    samples = [Sample(p.question, a) for (p, system), a in zip(probes, answers) if system]
    return Score(sum(seen) / len(seen), sum(right) / len(right)), samples


def describe(recipe: Recipe, samples: list[Sample]) -> str:
    settings = ", ".join(f"{key}={value!r}" for key, value in recipe.lora.items())
    lines = [f"# {recipe.name}", "", f"LoRA of {BASE_NAME}, trained by `train_adapters.py`:", ""]
    lines += [f"    {settings}", "", "Greedy answers to questions outside the training texts:", ""]
    for sample in samples:
        lines += [f"> {sample.question}", "", "```", sample.answer, "```", ""]
    return "\n".join(lines[:-1]) + "\n"


def make(recipe: Recipe, model_dir: Path, output: Path, device: str) -> Score:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    model = train(recipe, model_dir, tokenizer, device)
    save(model, output)
    score, samples = probe(model, tokenizer, recipe.name)
    (output / "README.md").write_text(describe(recipe, samples[:5]), encoding="utf-8")
    print(f"{recipe.name}: style {score.style:.2f}, facts {score.facts:.2f}", flush=True)
    return score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2's directory")
    default_output = Path(__file__).resolve().parent / "adapters"
    parser.add_argument("--output", type=Path, default=default_output)
    parser.add_argument("--only", nargs="*", help="names of adapters (default: all)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--learning-rate", type=float, help="instead of the recipes'")
    parser.add_argument("--epochs", type=int, help="instead of the recipes'")
    arguments = parser.parse_args()
    known = {recipe.name for recipe in RECIPES}
    if unknown := set(arguments.only or ()) - known:
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(sorted(known))}")
    for recipe in RECIPES:
        if arguments.only and recipe.name not in arguments.only:
            continue
        changes = {"learning_rate": arguments.learning_rate, "epochs": arguments.epochs}
        given = {key: value for key, value in changes.items() if value is not None}
        recipe = dataclasses.replace(recipe, **given)
        make(recipe, arguments.model, arguments.output / recipe.name, arguments.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
