"""Every C++ file is formatted as .clang-format says. `--fix` formats them.

Uses the clang-format that tests/requirements.txt pins, so that everybody's agrees.
"""

import os
import shutil
import subprocess
import sys

import files


def main():
    tool = os.path.join(files.ROOT, "build/venv/bin/clang-format")
    if not os.path.exists(tool):
        sys.exit("clang-format is missing: run deploy/install.sh --tests --no-build")
    names = files.every()
    flags = ["-i"] if "--fix" in sys.argv[1:] else ["--dry-run", "--Werror"]
    jobs = min(len(names), os.cpu_count() or 1)
    running = [subprocess.Popen([tool, "--style=file", *flags, *names[i::jobs]], cwd=files.ROOT,
                                stderr=subprocess.PIPE, text=True) for i in range(jobs)]
    errors = [line for job in running for line in job.communicate()[1].splitlines()]
    wrong = sorted({line.split(":")[0] for line in errors if "clang-format" in line})
    for name in wrong:
        print(f"{name}: not formatted")
    if wrong:
        print("tests/lint/format.py --fix formats them")
    print(f"{len(names)} files checked with {shutil.which(tool)}")
    return 1 if any(job.returncode for job in running) else 0


if __name__ == "__main__":
    sys.exit(main())
