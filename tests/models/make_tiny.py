#!/usr/bin/env python3
"""Writes the tiny random base models of this folder: numpy's PCG64, the same bytes each time.

They have no tokenizer and no EOS: requests are token ids. Scales are chosen so that greedy tokens
vary and the top two logits lie well apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LOGIT_STD = 5.0  # of an untied model's logits


@dataclass(frozen=True)
class Tiny:
    name: str
    architecture: str  # Llama, Mistral, Qwen2 or Qwen3
    seed: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    layers: int
    dtype: str  # bfloat16 or float32
    tied: bool = False
    shards: int = 1
    extra: dict[str, Any] = field(default_factory=dict)  # more keys of config.json


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

MODELS = (
    Tiny("tiny-llama-8q2kv", "Llama", 11, 64, 8, 2, 16, 96, 320, 3, "bfloat16"),
    Tiny(
        "tiny-llama3-6q3kv", "Llama", 12, 96, 6, 3, 16, 128, 320, 2, "bfloat16", tied=True,
        extra={"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE},
    ),
    Tiny("tiny-mistral-odd", "Mistral", 13, 56, 4, 2, 16, 88, 331, 2, "float32"),
    Tiny("tiny-qwen2-sharded", "Qwen2", 14, 64, 4, 2, 16, 96, 320, 3, "bfloat16", shards=2),
    Tiny("tiny-qwen3-headdim", "Qwen3", 15, 64, 4, 2, 24, 96, 320, 2, "float32", tied=True),
)  # fmt: skip

ARCHITECTURE_KEYS: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": False, "mlp_bias": False, "rope_scaling": None},
    "Mistral": {"sliding_window": None},
    "Qwen2": {"use_sliding_window": False, "sliding_window": None, "rope_scaling": None},
    "Qwen3": {
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "rope_scaling": None,
    },
}


def config_json(tiny: Tiny) -> dict[str, Any]:
    config = {
        "architectures": [f"{tiny.architecture}ForCausalLM"],
        "model_type": tiny.architecture.lower(),
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.ffn,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "vocab_size": tiny.vocab,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6 if tiny.architecture == "Qwen3" else 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": tiny.tied,
        "torch_dtype": tiny.dtype,
        "use_cache": True,
    }
    return {**config, **ARCHITECTURE_KEYS[tiny.architecture], **tiny.extra}


def layer_shapes(tiny: Tiny) -> dict[str, tuple[int, ...]]:
    """Name within the layer -> shape, [out, in] for matrices."""
    query, kv = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (tiny.hidden,),
        "self_attn.q_proj.weight": (query, tiny.hidden),
        "self_attn.k_proj.weight": (kv, tiny.hidden),
        "self_attn.v_proj.weight": (kv, tiny.hidden),
        "self_attn.o_proj.weight": (tiny.hidden, query),
        "post_attention_layernorm.weight": (tiny.hidden,),
        "mlp.gate_proj.weight": (tiny.ffn, tiny.hidden),
        "mlp.up_proj.weight": (tiny.ffn, tiny.hidden),
        "mlp.down_proj.weight": (tiny.hidden, tiny.ffn),
    }
    if tiny.architecture == "Qwen2":
        shapes["self_attn.q_proj.bias"] = (query,)
        shapes["self_attn.k_proj.bias"] = (kv,)
        shapes["self_attn.v_proj.bias"] = (kv,)
    if tiny.architecture == "Qwen3":
        shapes["self_attn.q_norm.weight"] = (tiny.head_dim,)
        shapes["self_attn.k_norm.weight"] = (tiny.head_dim,)
    return shapes


def draw(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    values = random.standard_normal(shape)
    if "norm" in name:
        return 1.0 + 0.1 * values
    if name.endswith("bias"):
        return 0.3 * values
    gain = 1.3 if "q_proj" in name or "k_proj" in name else 1.6
    return gain * values / np.sqrt(shape[1])


def make_tensors(tiny: Tiny) -> dict[str, np.ndarray]:
    random = np.random.Generator(np.random.PCG64(tiny.seed))
    # A tied embedding is also the output: small, so that a token does not predict itself.
    embed_std = 0.4 if tiny.tied else 0.7
    tensors = {
        "model.embed_tokens.weight": embed_std * random.standard_normal((tiny.vocab, tiny.hidden))
    }
    for layer in range(tiny.layers):
        for name, shape in layer_shapes(tiny).items():
            tensors[f"model.layers.{layer}.{name}"] = draw(name, shape, random)
    tensors["model.norm.weight"] = draw("norm", (tiny.hidden,), random)
    if not tiny.tied:
        values = random.standard_normal((tiny.vocab, tiny.hidden))
        tensors["lm_head.weight"] = LOGIT_STD * values / np.sqrt(tiny.hidden)
    return tensors


def encode(values: np.ndarray, dtype: str) -> bytes:
    """float64 -> little-endian float32, or bf16 rounded from it to nearest even."""
    single = values.astype("<f4")
    if dtype == "float32":
        return single.tobytes()
    bits = single.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str) -> int:
    """Returns the bytes of the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    pieces, offset = [], 0
    for name, values in tensors.items():
        piece = encode(values, dtype)
        header[name] = {
            "dtype": "BF16" if dtype == "bfloat16" else "F32",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(piece)],
        }
        pieces.append(piece)
        offset += len(piece)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(pieces))
    return offset


def write_model(tiny: Tiny, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_json(tiny), indent=1) + "\n")
    tensors = make_tensors(tiny)
    if tiny.shards == 1:
        write_safetensors(directory / "model.safetensors", tensors, tiny.dtype)
        return
    names = list(tensors)
    weight_map, total = {}, 0
    for shard in range(tiny.shards):
        file = f"model-{shard + 1:05}-of-{tiny.shards:05}.safetensors"
        first, last = (len(names) * k // tiny.shards for k in (shard, shard + 1))
        part = {name: tensors[name] for name in names[first:last]}
        total += write_safetensors(directory / file, part, tiny.dtype)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=1) + "\n"
    (directory / "model.safetensors.index.json").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent)
    arguments = parser.parse_args()
    for tiny in MODELS:
        write_model(tiny, arguments.output / tiny.name)
        print(arguments.output / tiny.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
