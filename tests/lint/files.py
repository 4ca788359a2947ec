"""Which C++ files a lint looks at."""

import os
import subprocess

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
SUFFIXES = (".cc", ".h", ".cu", ".cuh")


def _git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def every():
    """All C++ files that git tracks or would track."""
    names = _git("ls-files", "-co", "--exclude-standard") or ""
    return sorted(n for n in names.splitlines()
                  if n.endswith(SUFFIXES) and os.path.isfile(os.path.join(ROOT, n)))


def base():
    """The commit to compare with: $LINT_BASE, else where the branch left main, else HEAD~."""
    if os.environ.get("LINT_BASE"):
        return os.environ["LINT_BASE"]
    head = _git("rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        merged = _git("merge-base", "HEAD", main)
        if merged and merged != head:
            return merged
    return _git("rev-parse", "-q", "--verify", "HEAD~")


def changed():
    """C++ files that differ from base(), committed or not."""
    start = base()
    if start is None:
        return []
    names = set((_git("diff", "--name-only", start) or "").splitlines())
    names |= set((_git("ls-files", "-o", "--exclude-standard") or "").splitlines())
    return [n for n in every() if n in names]
