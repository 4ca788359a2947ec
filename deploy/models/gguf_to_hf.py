"""Turns the GGUF of a Llama with a GPT-2 style vocabulary into a Hugging Face directory.

Handles what SmolLM2's GGUF holds (F32, Q4_1 and Q8_0 tensors) and refuses the rest by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:  # imported late: the arithmetic's tests need numpy alone
    from gguf import GGUFReader

CONTROL_TOKEN = 3  # GGUF's token type of special tokens

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class ConversionError(Exception):
    """The input is not what this script was written for."""


Log = Callable[[str], None]


# ---- arithmetic ---------------------------------------------------------------------------------


def dequantize_q4_1(blocks: np.ndarray) -> np.ndarray:
    """uint8 [..., n * 20] -> float32 [..., n * 32].

    A block is d (f16), m (f16) and 16 bytes of nibbles; value i is d * q + m, where q is the low
    nibble of byte i for i < 16 and the high nibble of byte i - 16 otherwise.
    """
    lead = blocks.shape[:-1]
    rows = blocks.reshape(-1, 20)
    scale = np.ascontiguousarray(rows[:, 0:2]).view(np.float16).astype(np.float32)
    minimum = np.ascontiguousarray(rows[:, 2:4]).view(np.float16).astype(np.float32)
    nibbles = rows[:, 4:]
    quants = np.concatenate([nibbles & 0x0F, nibbles >> 4], axis=1).astype(np.float32)
    return (quants * scale + minimum).reshape(*lead, -1)


def dequantize_q8_0(blocks: np.ndarray) -> np.ndarray:
    """uint8 [..., n * 34] -> float32 [..., n * 32]: value = d (f16) * q (int8)."""
    lead = blocks.shape[:-1]
    rows = blocks.reshape(-1, 34)
    scale = np.ascontiguousarray(rows[:, 0:2]).view(np.float16).astype(np.float32)
    quants = np.ascontiguousarray(rows[:, 2:]).view(np.int8).astype(np.float32)
    return (quants * scale).reshape(*lead, -1)


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """[heads * head_dim, in]: from llama.cpp's interleaved rotary pairs to Hugging Face's halves.

    llama.cpp stores a head's rows as x0, y0, x1, y1, ...; Hugging Face as x0, x1, ..., y0, y1, ...
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 -> uint16 bit patterns of bf16, rounded to nearest even; finite values only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


# ---- GGUF to Hugging Face -----------------------------------------------------------------------


def field(reader: GGUFReader, key: str) -> Any:
    found = reader.fields.get(key)
    if found is None:
        raise ConversionError(f"{key}: missing from the GGUF")
    return found.contents()


def model_config(reader: GGUFReader) -> dict[str, Any]:
    if field(reader, "general.architecture") != "llama":
        raise ConversionError("general.architecture: only llama is handled")
    heads = field(reader, "llama.attention.head_count")
    hidden = field(reader, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "head_dim": field(reader, "llama.rope.dimension_count"),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": hidden**-0.5,
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "max_position_embeddings": field(reader, "llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
        # GGUF keeps it as float32: 9.9999997e-06 is the model's 1e-05.
        "rms_norm_eps": float(f"{field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_scaling": None,
        "rope_theta": float(field(reader, "llama.rope.freq_base")),
        "tie_word_embeddings": not any(t.name == "output.weight" for t in reader.tensors),
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": field(reader, "llama.vocab_size"),
    }


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def special_tokens(reader: GGUFReader) -> list[tuple[int, str]]:
    tokens = field(reader, "tokenizer.ggml.tokens")
    types = field(reader, "tokenizer.ggml.token_type")
    return [(i, t) for i, (t, kind) in enumerate(zip(tokens, types)) if kind == CONTROL_TOKEN]


def tokenizer_json(reader: GGUFReader) -> str:
    """The published tokenizer.json, to the byte (smollm2.py checks its sha256)."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

    def byte_level(add_prefix_space: bool) -> dict[str, Any]:
        return {
            "type": "ByteLevel",
            "add_prefix_space": add_prefix_space,
            "trim_offsets": True,
            "use_regex": True,
        }

    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, **flags, "special": True}
            for i, token in special_tokens(reader)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(False)],
        },
        "post_processor": None,
        "decoder": byte_level(True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(field(reader, "tokenizer.ggml.tokens"))},
            "merges": field(reader, "tokenizer.ggml.merges"),
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def tokenizer_config(reader: GGUFReader, config: dict[str, Any]) -> dict[str, Any]:
    tokens = field(reader, "tokenizer.ggml.tokens")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    specials = special_tokens(reader)
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(i): {"content": token, **flags, "special": True} for i, token in specials
        },
        "bos_token": tokens[config["bos_token_id"]],
        "chat_template": field(reader, "tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[config["eos_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "pad_token": tokens[config["pad_token_id"]],
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": tokens[field(reader, "tokenizer.ggml.unknown_token_id")],
        "vocab_size": config["vocab_size"],
    }


def hugging_face_name(gguf_name: str) -> str:
    fixed = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if gguf_name in fixed:
        return fixed[gguf_name]
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight" and parts[2] in LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    raise ConversionError(f"{gguf_name}: no Hugging Face name is known for this tensor")


def dense(tensor: Any) -> np.ndarray:
    """A GGUF tensor as float32 in row-major [out, in] (or [n])."""
    kind = tensor.tensor_type.name
    shape = tuple(int(n) for n in reversed(tensor.shape))
    if kind == "F32":
        return np.asarray(tensor.data, dtype=np.float32).reshape(shape)
    decoders = {"Q4_1": dequantize_q4_1, "Q8_0": dequantize_q8_0}
    if kind not in decoders:
        raise ConversionError(f"{tensor.name}: tensor type {kind} is not handled")
    return decoders[kind](tensor.data).reshape(shape)


def convert_tensor(tensor: Any, config: dict[str, Any]) -> np.ndarray:
    values = dense(tensor)
    if tensor.name.endswith("attn_q.weight"):
        values = unpermute(values, config["num_attention_heads"])
    elif tensor.name.endswith("attn_k.weight"):
        values = unpermute(values, config["num_key_value_heads"])
    return to_bf16(values)


def write_safetensors(path: Path, reader: GGUFReader, config: dict[str, Any], log: Log) -> None:
    """Header first (sizes are known), then one tensor at a time: memory stays small."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    tensors = sorted(reader.tensors, key=lambda tensor: hugging_face_name(tensor.name))
    for tensor in tensors:
        size = 2 * int(tensor.n_elements)
        header[hugging_face_name(tensor.name)] = {
            "dtype": "BF16",
            "shape": [int(n) for n in reversed(tensor.shape)],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little"))
        out.write(encoded)
        write_tensors(out, tensors, config, log)


def write_tensors(out: BinaryIO, tensors: list[Any], config: dict[str, Any], log: Log) -> None:
    report_every = max(1, len(tensors) // 5)
    for done, tensor in enumerate(tensors, start=1):
        out.write(convert_tensor(tensor, config).tobytes())
        if done % report_every == 0 or done == len(tensors):
            log(f"converted {done} of {len(tensors)} tensors")


def convert(gguf_path: Path, directory: Path, log: Log) -> None:
    """Writes the five files of the Hugging Face directory; `directory` exists and is empty."""
    from gguf import GGUFReader

    log("reading the GGUF")
    reader = GGUFReader(str(gguf_path))
    config = model_config(reader)
    documents = {
        "config.json": config,
        "generation_config.json": generation_config(config),
        "tokenizer_config.json": tokenizer_config(reader, config),
    }
    for name, document in documents.items():
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "tokenizer.json").write_text(tokenizer_json(reader), encoding="utf-8")
    write_safetensors(directory / "model.safetensors", reader, config, log)
