"""Runs a script of deploy/ and gives back what it said."""

import os
import subprocess

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


def run(name, *arguments, timeout=280, env=None):
    return subprocess.run(
        [os.path.join(ROOT, "deploy", name), *arguments], stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=timeout,
        env={**os.environ, **(env or {})})
