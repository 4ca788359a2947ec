"""tokenizer.json files for vocabularies that packages ship in other forms.

The conversions are the usual ones (every split of a token into two tokens is a merge, ranked like the
token). Both sides of the comparison read the file, so its merges need not be the published ones.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARK = "▁"


def added(token: str, number: int, special: bool = True, **flags: bool) -> dict[str, Any]:
    return {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special} | flags


def split_merges(ranks: dict[Any, int]) -> list[tuple[Any, Any]]:
    """All (left, right) with left, right and left + right in `ranks`, best first."""
    merges = []
    for token, rank in ranks.items():
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [(rank, ranks[a], ranks[b], a, b) for a, b in pairs if a in ranks and b in ranks]
        merges += sorted(known, key=lambda m: m[:3])
    return [(a, b) for _, _, _, a, b in sorted(merges, key=lambda m: m[0])]


def byte_alphabet() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


def qwen(tiktoken: Path) -> dict[str, Any]:
    """The tokenizer of Qwen2 and Qwen3 from the first Qwen's tiktoken file."""
    lines = tiktoken.read_bytes().split(b"\n")
    ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in lines if line)}
    alphabet = byte_alphabet()
    spell: Callable[[bytes], str] = lambda token: "".join(alphabet[b] for b in token)  # noqa: E731
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tail = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(s, len(ranks) + i) for i, s in enumerate(specials)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, tail]},
        "post_processor": tail, "decoder": tail,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "vocab": {spell(t): r for t, r in ranks.items()},
                  "merges": [f"{spell(a)} {spell(b)}" for a, b in split_merges(ranks)]},
    }


def sentencepiece_bpe(model: Path) -> dict[str, Any]:
    """Vocabulary, merges and control tokens of a SentencePiece BPE model."""
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_file=str(model))
    size = pieces.get_piece_size()
    vocab = {pieces.id_to_piece(i): i for i in range(size)}
    scored = sorted(range(size), key=lambda i: -pieces.get_score(i))
    ranks = {pieces.id_to_piece(i): n for n, i in enumerate(scored)
             if not (pieces.is_control(i) or pieces.is_unknown(i) or pieces.is_byte(i))}
    controls = [i for i in range(size) if pieces.is_control(i) or pieces.is_unknown(i)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(pieces.id_to_piece(i), i) for i in controls],
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                  "ignore_merges": False, "vocab": vocab,
                  "merges": [[a, b] for a, b in split_merges(ranks)]},
    }


def _bos_template(bos: str, number: int) -> dict[str, Any]:
    sequence = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    special = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [special, sequence[0]],
            "pair": [special, sequence[0], special, sequence[1]],
            "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}}}


def _decoder(strip: int) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}]
    if strip:
        steps.append({"type": "Strip", "content": " ", "start": strip, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def llama_style(model: Path) -> dict[str, Any]:
    """As Llama 2 and Mistral 7B were first published: a mark before every text between specials."""
    steps = [{"type": "Prepend", "prepend": MARK},
             {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]
    return sentencepiece_bpe(model) | {
        "normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None,
        "post_processor": _bos_template("<s>", 1), "decoder": _decoder(1)}


def metaspace_style(model: Path) -> dict[str, Any]:
    """As later conversions have it: a mark before the whole text only."""
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    return sentencepiece_bpe(model) | {
        "normalizer": None, "pre_tokenizer": metaspace,
        "post_processor": _bos_template("<s>", 1), "decoder": _decoder(1)}


def gemma_style(model: Path) -> dict[str, Any]:
    """As Gemma has it: no mark of its own, words cut behind spaces."""
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
             "invert": False}
    return sentencepiece_bpe(model) | {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
        "pre_tokenizer": split, "post_processor": _bos_template("<s>", 1), "decoder": _decoder(0)}


def write(directory: Path, description: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(description, ensure_ascii=False), "utf-8")
    return directory
