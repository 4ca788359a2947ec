"""The texts show their styles, and the committed adapters are small, bf16 and of six shapes."""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import styles  # noqa: E402

ADAPTERS = sorted(path for path in (HERE / "adapters").iterdir())
MAX_BYTES = 10_000_000


def config(adapter: Path) -> dict:
    return json.loads((adapter / "adapter_config.json").read_text())


class Texts(unittest.TestCase):
    def test_every_example_shows_its_style(self) -> None:
        for style in [*styles.FACT_STYLES, "haiku"]:
            for example in styles.examples(style):
                self.assertTrue(styles.shows_style(style, example.answer), example)

    def test_plain_answers_show_no_style(self) -> None:
        for fact in styles.load_texts("facts"):
            for style in [*styles.FACT_STYLES, "haiku"]:
                self.assertFalse(styles.shows_style(style, fact["answer"]), (style, fact))

    def test_probes_are_not_trained_on(self) -> None:
        texts = styles.load_texts("facts") + styles.load_texts("haiku")
        trained = {text["question"] for text in texts}
        self.assertFalse(trained & {probe.question for probe in styles.PROBES})


class Adapters(unittest.TestCase):
    def test_one_for_each_style(self) -> None:
        names = [adapter.name for adapter in ADAPTERS]
        self.assertEqual(names, sorted([*styles.FACT_STYLES, "haiku"]))
        demo = json.loads((HERE / "prompts.json").read_text())
        self.assertEqual(sorted(prompt["model"] for prompt in demo["prompts"][1:]), names)

    def test_files_are_bf16_and_small(self) -> None:
        total = 0
        for adapter in ADAPTERS:
            data = (adapter / "adapter_model.safetensors").read_bytes()
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            header.pop("__metadata__", None)
            self.assertEqual({entry["dtype"] for entry in header.values()}, {"BF16"}, adapter)
            total += sum(path.stat().st_size for path in adapter.iterdir())
        self.assertLessEqual(total, MAX_BYTES)

    def test_base_model_is_named(self) -> None:
        for adapter in ADAPTERS:
            name = config(adapter)["base_model_name_or_path"]
            self.assertEqual(name, "HuggingFaceTB/SmolLM2-135M-Instruct")

    def test_kinds_of_config_are_covered(self) -> None:
        configs = {adapter.name: config(adapter) for adapter in ADAPTERS}
        self.assertEqual({c["r"] for c in configs.values()}, {4, 5, 8, 16, 64})
        self.assertTrue(configs["json"]["use_rslora"])
        self.assertEqual(len(configs["sherlock"]["layers_to_transform"]), 4)
        self.assertTrue(configs["haiku"]["rank_pattern"] and configs["haiku"]["alpha_pattern"])
        self.assertIsInstance(configs["emoji"]["target_modules"], str)


if __name__ == "__main__":
    unittest.main()
