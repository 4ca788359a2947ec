#!/usr/bin/env python3
"""tables.py and plots.py: what the pages under docs/benchmarks hold is what they write today."""

import pathlib
import tempfile
import unittest

import plots
import tables


class Words(unittest.TestCase):
    def test_a_digit_more_where_rounding_would_tell_otherwise(self):
        self.assertEqual(tables.item("a", 1.2895, 1.29, "higher"), ("a", "1.2895", False))
        self.assertEqual(tables.item("a", 1.296, 1.29, "higher"), ("a", "1.30", True))
        self.assertEqual(tables.item("a", 1.004, 1.0), ("a", "1.0040", False))
        self.assertEqual(tables.item("a", 0.95, 1.0), ("a", "0.95", True))

    def test_a_goal_names_what_falls_short(self):
        held, short = ("1x0", "0.89", True), ("16x0", "0.84", False)
        row = tables.goal(5, "step", "≥ 0.85", [held, short], "decode.md")
        self.assertEqual(row, "| 5 | step | ≥ 0.85 | 1x0 0.89, 16x0 0.84 | [short: 16x0](benchmarks/decode.md) |")
        self.assertIn("[reached]", tables.goal(5, "step", "", [held], "decode.md"))
        self.assertIn("[short]", tables.goal(5, "step", "", [short], "decode.md"))
        self.assertIn("not measured", tables.goal(5, "step", "", [], "decode.md"))


class Pages(unittest.TestCase):
    def test_tables_are_those_of_the_files(self):
        for page in tables.pages():
            text = page.read_text()
            self.assertEqual(text, tables.filled(text), f"{page.name}: run tests/perf/tables.py")

    def test_plots_are_those_of_the_files(self):
        folder = tables.DOCS / "benchmarks"
        with tempfile.TemporaryDirectory() as scratch:
            plots.draw(folder, pathlib.Path(scratch))
            drawn = {path.name: path.read_text() for path in pathlib.Path(scratch).iterdir()}
        kept = {path.name: path.read_text() for path in (folder / "plots").iterdir()}
        self.assertEqual(drawn, kept, "run tests/perf/plots.py")


if __name__ == "__main__":
    unittest.main()
