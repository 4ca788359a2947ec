#!/usr/bin/env python3
"""Copies of PEFT adapters in turn, each of other content, quickly: for benchmarks with thousands.

python3 adapter_copies.py ADAPTER_DIR [ADAPTER_DIR ...] OUT_DIR COUNT
"""

import concurrent.futures
import functools
import os
import pathlib
import shutil
import sys


def write(adapters, folder, i):
    """Low bits of the last numbers differ: little-endian, 16 bits a number."""
    shutil.copytree(adapters[i % len(adapters)], folder / f"a{i}")
    with open(folder / f"a{i}" / "adapter_model.safetensors", "r+b") as file:
        for offset, byte in ((-2, i & 255), (-4, i >> 8)):
            file.seek(offset, 2)
            file.write(bytes([byte]))


def copies(adapters, folder, count):
    """Their names: a0, a1, …"""
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(functools.partial(write, adapters, folder), range(count), chunksize=4))
    return [f"a{i}" for i in range(count)]


if __name__ == "__main__":
    copies([pathlib.Path(a) for a in sys.argv[1:-2]], pathlib.Path(sys.argv[-2]), int(sys.argv[-1]))
