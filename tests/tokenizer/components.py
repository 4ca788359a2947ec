"""Small tokenizers that use every component in turn, for the comparison with the reference.

Where texts are cut shows in the ids: with a vocabulary of bytes alone and an end-of-word suffix that is
spelled in bytes too, every piece ends with the suffix's ids. Decoders and models get a vocabulary cut
from a SentencePiece model.
"""

from pathlib import Path
from typing import Any

import convert

MARK = convert.MARK
Description = dict[str, Any]


def small_vocabulary(model: Path, size: int = 6000) -> Description:
    """The first tokens of the model by rank, with byte tokens, and "<unk>", "<s>", "</s>"."""
    whole = convert.sentencepiece_bpe(model)["model"]
    kept: dict[str, int] = {}
    merges = []
    for token in [t for t, i in whole["vocab"].items() if i < 259]:
        kept[token] = len(kept)
    letters = [t for t in whole["vocab"] if len(t) == 1 and t not in kept]
    for token in [*letters, *"abc "]:
        kept.setdefault(token, len(kept))
    for left, right in whole["merges"]:
        if len(kept) >= size and left + right not in kept:
            break
        if left in kept and right in kept:
            kept.setdefault(left + right, len(kept))
            merges.append([left, right])
    return whole | {"vocab": kept, "merges": merges}


def byte_vocabulary() -> Description:
    """Characters become their bytes, and pieces end with the bytes of "</w>"."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": "</w>", "fuse_unk": False, "byte_fallback": True,
            "ignore_merges": False, "vocab": {t: i for i, t in enumerate(tokens)}, "merges": []}


def _base(model: Description) -> Description:
    specials = [convert.added(t, i) for i, t in enumerate(("<unk>", "<s>", "</s>"))]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": specials,
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
            "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": model}


def _sequence(key: str, *parts: Description) -> Description:
    return {"type": "Sequence", key: list(parts)}


def normalizers() -> dict[str, Description]:
    plain = {name: {"type": name} for name in
             ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel")}
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    strips = {f"strip-{left}-{right}": {"type": "Strip", "strip_left": left, "strip_right": right}
              for left in (False, True) for right in (False, True)}
    return plain | strips | {
        "none": None,
        "prepend": {"type": "Prepend", "prepend": "x" + MARK},
        "accents": _sequence("normalizers", plain["NFD"], plain["StripAccents"], mark),
        "folded": _sequence("normalizers", plain["NFKC"], plain["Lowercase"], mark),
        "empty": _sequence("normalizers"),
        "replace": {"type": "Replace", "pattern": {"Regex": r"\s+|(?<=[a-z])\p{P}"}, "content": MARK},
        "remove": {"type": "Replace", "pattern": {"String": ".*"}, "content": ""},
    }


def pre_tokenizers() -> dict[str, Description]:
    behaviors = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    result: dict[str, Description] = {}
    for behavior in behaviors:
        for invert in (False, True):
            for kind, pattern in (("String", MARK), ("Regex", r"\p{L}+|\d")):
                result[f"split-{behavior}-{invert}-{kind}"] = {
                    "type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}
        result[f"punctuation-{behavior}"] = {"type": "Punctuation", "behavior": behavior}
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            result[f"metaspace-{scheme}-{split}"] = {
                "type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}
    for prefix in (False, True):
        for regex in (False, True):
            result[f"bytelevel-{prefix}-{regex}"] = {
                "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True,
                "use_regex": regex}
    digits = {"type": "Digits", "individual_digits": True}
    return result | {
        "digits-each": digits, "digits-runs": {"type": "Digits", "individual_digits": False},
        "whitespace": {"type": "Whitespace"}, "whitespace-split": {"type": "WhitespaceSplit"},
        "bert": {"type": "BertPreTokenizer"}, "fixed": {"type": "FixedLength", "length": 3},
        "delimiter": {"type": "CharDelimiterSplit", "delimiter": "a"},
        "sequence": _sequence("pretokenizers", digits, {"type": "Punctuation"},
                              {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first"}),
    }


PATTERNS = {
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
             r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
             r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
             r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|\s+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "words": r"\w+|\W", "hex": r"\h{2,}|\H", "border": r"\b", "digits": r"\D+|\d{,3}",
    "lines": r"^.|.$", "any": r"(?m:.)(?=a)|(?>[ab]+)c?", "controls": r"[\x00-\x1f\x{7F}-\u009F]|\v|[\b]",
    "properties": r"\P{L}\p{^N}|\p{Lu}\p{Ll}*|\p{Greek}+|\p{Zs}", "class": r"[]\-a&|^{}]+|[^-a-z\]]|[+--]",
    "scripts": r"\p{Latin}+|\p{Cyrillic}+|\p{Arab}+|\p{Han}+|\p{Egyptian_Hieroglyphs}|\p{Myanmar}"
               r"|\p{Hiragana}+|\p{Hang}+|\p{Balinese}|\p{Kawi}|\p{Khitan_Small_Script}",
    "braces": r"a{|}|]|x{2,}?", "unassigned": r"\p{Cn}|\p{C}+",
    "insensitive": r"(?i)straße|k|ſ|hello|İ|ǆ", "behind": r"(?<![a-z])\p{Ll}|(?<=\p{Han}).",
}


# Names of descriptions that are compared on every code point.
EXHAUSTIVE = ["normalizer-NFC", "normalizer-NFD", "normalizer-NFKC", "normalizer-NFKD",
              "normalizer-Lowercase", "normalizer-StripAccents", "pre-digits-runs",
              "pre-punctuation-Isolated", "pre-whitespace", "pre-whitespace-split",
              "pre-bytelevel-False-True", "pattern-o200k", "pattern-words", "pattern-properties",
              "pattern-unassigned", "pattern-scripts"]


# All of Unicode but the insides of its long uniform stretches (ideographs, syllables, private use,
# planes without characters).
CODE_RANGES = [(0, 0x3420), (0x4DA0, 0x4E20), (0x9FE0, 0xAC20), (0xD780, 0xD7FF), (0xE000, 0xE010),
               (0xF8F0, 0x17010), (0x187E0, 0x1FFFF), (0x2A6C0, 0x2A760), (0x2B720, 0x2B830),
               (0x2CE90, 0x2CEC0), (0x2EBD0, 0x2EE70), (0x2F7F0, 0x2FA30), (0x2FFF0, 0x30010),
               (0x31340, 0x31360), (0x323A0, 0x323C0), (0x3FFF0, 0x40010), (0xDFFF0, 0xE0200),
               (0xEFFF0, 0xF0010), (0x10FFF0, 0x10FFFF)]


def every_code_point(step: int = 997) -> list[str]:
    """The characters of CODE_RANGES in order, `step` to a string."""
    codes = [c for first, last in CODE_RANGES for c in range(first, last + 1)]
    return ["".join(map(chr, codes[i : i + step])) for i in range(0, len(codes), step)]


def decoders() -> dict[str, Description]:
    replace = lambda old, new: {"type": "Replace", "pattern": {"String": old}, "content": new}  # noqa: E731
    strip = lambda c, start, stop: {"type": "Strip", "content": c, "start": start, "stop": stop}  # noqa: E731
    fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
    metaspace = {"type": "Metaspace", "replacement": MARK}
    bytelevel = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    return {
        "none": None, "fallback": fallback, "fuse": fuse, "bytelevel": bytelevel,
        "metaspace": metaspace, "metaspace-never": metaspace | {"prepend_scheme": "never"},
        "suffix": {"type": "BPEDecoder", "suffix": "e"}, "strip-tokens": strip(MARK, 1, 0),
        "replace-tokens": replace("th", "<>"),
        "joined": _sequence("decoders", fallback, fuse, replace(MARK + MARK, "=="), replace("tht", ""),
                            strip("=", 3, 0)),
        "llama": _sequence("decoders", replace(MARK, " "), fallback, fuse, strip(" ", 1, 0)),
        "bytes-then-strip": _sequence("decoders", bytelevel, strip("a", 2, 0)),
    }


def models(vocabulary: Description) -> dict[str, Description]:
    suffixed = dict(vocabulary["vocab"])
    for token in [t for t in suffixed if len(t) == 1][:200]:
        suffixed[token + "</w>"] = len(suffixed)
        suffixed["##" + token] = len(suffixed)
    merges = [[a, b + "</w>"] for a, b in vocabulary["merges"][:400] if b + "</w>" in suffixed]
    for left, right in merges:
        suffixed[left + right] = len(suffixed)
    affixed = vocabulary | {"vocab": suffixed, "merges": vocabulary["merges"] + merges,
                            "end_of_word_suffix": "</w>"}
    prefixed = vocabulary | {"vocab": suffixed, "merges": [], "continuing_subword_prefix": "##"}
    return {
        "unk-each": vocabulary | {"fuse_unk": False, "byte_fallback": False},
        "unk-fused": vocabulary | {"fuse_unk": True, "byte_fallback": False},
        "unk-none": vocabulary | {"unk_token": None, "byte_fallback": False},
        "some-bytes": vocabulary | {"vocab": {t: i for t, i in vocabulary["vocab"].items()
                                              if t not in ("<0xE4>", "<0xF0>", "<0xC3>")}},
        "ignore-merges": vocabulary | {"ignore_merges": True}, "suffix": affixed, "prefix": prefixed,
    }


def post_processors() -> dict[str, Description]:
    template = convert._bos_template("<s>", 1)
    template["single"] = [*template["single"], {"SpecialToken": {"id": "<s>", "type_id": 0}}] * 1
    bytelevel = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    separators = {"sep": ["</s>", 2], "cls": ["<s>", 1]}
    return {
        "template": template, "bert": {"type": "BertProcessing"} | separators,
        "sequence": _sequence("processors", bytelevel, template),
        "roberta": {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}
        | separators,
    }


def added_tokens(count: int) -> dict[str, list[Description]]:
    specials = [convert.added(t, i) for i, t in enumerate(("<unk>", "<s>", "</s>"))]
    flags = [dict(lstrip=left, rstrip=right, single_word=word) for left in (False, True)
             for right in (False, True) for word in (False, True)]
    words = ("user", "x", "<|im_start|>", "[INST]", "é", "9", " if", "Hello")
    result = {}
    for special in (False, True):
        for normalized in (False, True):
            tokens = [convert.added(f"{word}", count + i, special=special,
                                    **flags[i] | {"normalized": normalized})
                      for i, word in enumerate(words)]
            result[f"{special}-{normalized}"] = [*specials, *tokens]
    nested = [convert.added(t, count + i, special=i % 2 == 0)
              for i, t in enumerate(("<|im", "<|im_start|>", "im_start", "|>user", "start|>"))]
    return result | {"nested": [*specials, *nested]}


def descriptions(model: Path) -> dict[str, Description]:
    """Name: tokenizer.json."""
    base = _base(byte_vocabulary())
    result = {f"normalizer-{n}": base | {"normalizer": d} for n, d in normalizers().items()}
    result |= {f"pre-{n}": base | {"pre_tokenizer": d} for n, d in pre_tokenizers().items()}
    result |= {f"pre-{n}-unnormalized": base | {"pre_tokenizer": d, "normalizer": None}
               for n, d in pre_tokenizers().items() if n.startswith(("meta", "byte", "white", "seq"))}
    for name, pattern in PATTERNS.items():
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        result[f"pattern-{name}"] = base | {"pre_tokenizer": split, "normalizer": None}
    result |= {f"post-{n}": base | {"post_processor": d} for n, d in post_processors().items()}
    lower = _sequence("normalizers", {"type": "Lowercase"}, base["normalizer"])
    for name, tokens in added_tokens(len(base["model"]["vocab"])).items():
        result[f"added-{name}"] = base | {"added_tokens": tokens}
        result[f"added-{name}-lowercase"] = base | {"added_tokens": tokens, "normalizer": lower}
    vocabulary = small_vocabulary(model)
    base = _base(vocabulary)
    result |= {f"decoder-{n}": base | {"decoder": d} for n, d in decoders().items()}
    result |= {f"model-{n}": base | {"model": d} for n, d in models(vocabulary).items()}
    return result
