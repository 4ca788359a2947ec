"""The committed tiny models are what make_tiny.py writes, and have the shapes they promise."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import make_tiny  # noqa: E402

MAX_BYTES = 400_000


class TinyModels(unittest.TestCase):
    def test_committed_files_are_reproduced(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            for tiny in make_tiny.MODELS:
                make_tiny.write_model(tiny, Path(name) / tiny.name)
                committed = sorted(path.name for path in (HERE / tiny.name).iterdir())
                written = sorted(path.name for path in (Path(name) / tiny.name).iterdir())
                self.assertEqual(written, committed)
                for file in written:
                    again = (Path(name) / tiny.name / file).read_bytes()
                    self.assertEqual(again, (HERE / tiny.name / file).read_bytes(), file)

    def test_they_stay_small(self) -> None:
        for tiny in make_tiny.MODELS:
            size = sum(path.stat().st_size for path in (HERE / tiny.name).iterdir())
            self.assertLessEqual(size, MAX_BYTES, tiny.name)

    def test_the_index_names_every_tensor_once(self) -> None:
        folder = HERE / "tiny-qwen2-sharded"
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        found: dict[str, str] = {}
        for file in sorted(set(index["weight_map"].values())):
            data = (folder / file).read_bytes()
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            header.pop("__metadata__")
            self.assertFalse(set(header) & set(found))
            found.update(dict.fromkeys(header, file))
        self.assertEqual(found, index["weight_map"])
        self.assertEqual(len(set(found.values())), 2)


if __name__ == "__main__":
    unittest.main()
