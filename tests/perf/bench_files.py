"""Benchmarks' files: lists of entries, docs/benchmarks/NAME.json."""

import json
import pathlib

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def entries(name):
    path = DOCS / "benchmarks" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def read(name):
    """Entries of a file by case; of entries with the same case the last."""
    return {e["case"]: e for e in entries(name)}
