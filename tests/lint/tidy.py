"""clang-tidy over the .cc files that changed; `tidy.py FILE…` checks the named ones.

Needs a configured build/dev for its compile_commands.json.
"""

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import files

BUILD = os.path.join(files.ROOT, "build/dev")


def compiled():
    """The project's C++ sources that build/dev compiles; clang-tidy can't read nvcc's flags."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        return {os.path.relpath(entry["file"], files.ROOT) for entry in json.load(file)
                if entry["file"].endswith(".cc")}


@functools.cache
def compiler_headers():
    """Where the compiler keeps headers of its own that clang-tidy's package lacks: omp.h."""
    done = subprocess.run(["g++", "-print-file-name=include"], capture_output=True, text=True,
                          check=True)
    return done.stdout.strip()


def check(name):
    tool = os.path.join(files.ROOT, "build/venv/bin/clang-tidy")
    return subprocess.run([tool, "-p", BUILD, "--quiet", "--extra-arg=-Wno-everything",
                           f"--extra-arg=-idirafter{compiler_headers()}", name],
                          cwd=files.ROOT, capture_output=True, text=True, check=False)


def main():
    wanted = sys.argv[1:] or files.changed()
    names = sorted(set(wanted) & compiled())
    print(f"clang-tidy on {len(names)} files that differ from {files.base()}", flush=True)
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, done in zip(names, pool.map(check, names)):
            if done.returncode:
                failed += 1
                print(f"{name}:\n{done.stdout}{done.stderr}", flush=True)
    print(f"{failed} of {len(names)} files have findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
