"""The golden files fit each other, the committed models and adapters, and what README.md says."""

from __future__ import annotations

import hashlib
import json
import sys
import unittest
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "deploy/models"))
import smollm2  # noqa: E402

STEPS = 64
TOP = 32
MIN_MARGIN = 0.01
MAX_BYTES = 5_000_000
ARRAYS = ("prompt", "tokens", "margins", "logits", "top_ids", "top_logits")
TYPES = {"F32": np.float32, "I32": np.int32}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        values = np.frombuffer(data[start + first : start + last], TYPES[entry["dtype"]])
        arrays[name] = values.reshape(entry["shape"])
    return arrays


def documents() -> dict[str, dict]:
    paths = sorted(HERE.glob("*--*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


class Goldens(unittest.TestCase):
    def test_every_model_and_adapter_has_one(self) -> None:
        found = {(d["model"], d["adapter"] and d["adapter"]["path"]) for d in documents().values()}
        tiny = [path for path in (ROOT / "tests/models").glob("tiny-*") if path.is_dir()]
        models = {str(path.relative_to(ROOT)) for path in tiny} | {smollm2.MODEL_NAME}
        self.assertEqual({model for model, adapter in found if adapter is None}, models)
        folders = [*ROOT.glob("deploy/demo/adapters/*"), *ROOT.glob("tests/models/adapters/*")]
        adapters = {str(path.relative_to(ROOT)) for path in folders}
        self.assertEqual({adapter for _, adapter in found if adapter is not None}, adapters)

    def test_files_are_those_the_goldens_were_made_from(self) -> None:
        for name, document in documents().items():
            expected = {}
            if document["adapter"]:
                folder = ROOT / document["adapter"]["path"]
                expected.update({folder / f: d for f, d in document["adapter"]["sha256"].items()})
            if document["model"] == smollm2.MODEL_NAME:
                weights = document["model_sha256"]["model.safetensors"]
                self.assertEqual(weights, smollm2.OUTPUT_SHA256["model.safetensors"], name)
            else:
                folder = ROOT / document["model"]
                expected.update({folder / f: d for f, d in document["model_sha256"].items()})
            for path, digest in expected.items():
                self.assertEqual(hashlib.sha256(path.read_bytes()).hexdigest(), digest, path)

    def test_arrays_agree_with_each_other(self) -> None:
        for name, document in documents().items():
            arrays = read_safetensors(HERE / f"{name}.safetensors")
            self.assertGreaterEqual(len(document["prompts"]), 2, name)
            for index, prompt in enumerate(document["prompts"]):
                with self.subTest(name=name, prompt=index):
                    self.check_prompt({key: arrays[f"{index}.{key}"] for key in ARRAYS}, prompt)

    def check_prompt(self, arrays: dict[str, np.ndarray], prompt: dict) -> None:
        self.assertEqual(arrays["prompt"].shape, (prompt["num_prompt_tokens"],))
        self.assertEqual(arrays["tokens"].shape, (STEPS,))
        self.assertEqual(arrays["top_ids"].shape, (STEPS - 1, TOP))
        self.assertGreaterEqual(float(arrays["margins"].min()), MIN_MARGIN)
        top_logits = arrays["top_logits"]
        self.assertTrue((np.diff(top_logits, axis=1) <= 0).all())
        np.testing.assert_array_equal(arrays["margins"][1:], top_logits[:, 0] - top_logits[:, 1])
        self.assertEqual(arrays["tokens"][0], arrays["logits"].argmax())
        np.testing.assert_array_equal(arrays["tokens"][1:], arrays["top_ids"][:, 0])

    def test_they_stay_small(self) -> None:
        size = sum(path.stat().st_size for path in HERE.iterdir() if path.is_file())
        self.assertLessEqual(size, MAX_BYTES)


if __name__ == "__main__":
    unittest.main()
