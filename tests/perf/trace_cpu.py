#!/usr/bin/env python3
"""Goal 9 in small: S-LoRA's trace on the CPU backend, as ratios within one run.

python3 tests/perf/trace_cpu.py MODEL_DIR ADAPTER_DIR OUT.json --num-pages N [-- --rounds 5 …]
starts a coordinator and a worker of this build with so many pages, registers `--adapters` copies of
the adapter, each of other content, and runs `lora-bench trace`.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import rig  # noqa: E402


def copies(adapter, folder, count):
    """Adapters of other content: the low bits of their last numbers differ. Their names."""
    names = [f"t{i}" for i in range(count)]
    for i, name in enumerate(names):
        shutil.copytree(adapter, folder / name)
        with open(folder / name / "adapter_model.safetensors", "r+b") as file:
            for offset, byte in ((-2, i & 255), (-4, i >> 8)):  # little-endian, 16 bits a number
                file.seek(offset, 2)
                file.write(bytes([byte]))
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("adapter", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--adapters", type=int, default=64)
    parser.add_argument("--num-pages", type=int, required=True)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("flags", nargs="*", help="of lora-bench trace, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        names = copies(args.adapter, pathlib.Path(root), args.adapters)
        with rig.Cluster(args.model, "--max-num-seqs", str(args.sequences),
                         adapter_root=pathlib.Path(root)) as cluster:
            cluster.start_group(1, "--num-pages", str(args.num_pages))
            for name in names:
                cluster.register(name, name)
            subprocess.run(
                [rig.BIN / "lora-bench", "trace", "--address", cluster.address, "--out", args.out,
                 "--commit", args.commit, "--max-length", str(args.max_length), "--streams",
                 str(2 * args.sequences), *[f for n in names for f in ("--name", n)], *args.flags],
                check=True)
            evicted = cluster.metric("adapter_evictions_total", tier="device", reason="pressure")
            print(f"adapters evicted from the device: {evicted:.0f}")


if __name__ == "__main__":
    main()
