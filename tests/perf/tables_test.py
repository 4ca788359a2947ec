#!/usr/bin/env python3
"""tables.py, plots.py and gpu_stack_report.py: what the pages under docs/benchmarks hold is what they write today."""

import pathlib
import tempfile
import unittest

import gpu_stack_report
import plots
import goal_rows
import tables


class Words(unittest.TestCase):
    def test_a_digit_more_where_rounding_would_tell_otherwise(self):
        self.assertEqual(goal_rows.item("a", 1.2895, 1.29, "higher"), ("a", "1.2895", False))
        self.assertEqual(goal_rows.item("a", 1.296, 1.29, "higher"), ("a", "1.30", True))
        self.assertEqual(goal_rows.item("a", 1.004, 1.0), ("a", "1.0040", False))
        self.assertEqual(goal_rows.item("a", 0.95, 1.0), ("a", "0.95", True))

    def test_a_goal_names_what_falls_short(self):
        held, short = ("1x0", "0.89", True), ("16x0", "0.84", False)
        row = goal_rows.goal(5, "step", "≥ 0.85", [held, short], "decode.md")
        self.assertEqual(row, "| 5 | step | ≥ 0.85 | 1x0 0.89, 16x0 0.84 | [short: 16x0](benchmarks/decode.md) |")
        self.assertIn("[reached]", goal_rows.goal(5, "step", "", [held], "decode.md"))
        self.assertIn("[short]", goal_rows.goal(5, "step", "", [short], "decode.md"))
        self.assertIn("not measured", goal_rows.goal(5, "step", "", [], "decode.md"))


class StackReport(unittest.TestCase):
    """gpu_stack_report.py: how idle a device was from one scrape of its worker to another."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def scrape(self, name, steps, **seconds):
        lines = [f'rootstock_step_duration_seconds_count{{phase="{phase}",tp_rank="0"}} {steps}'
                 for phase in ("prefill", "decode", "mixed")]
        for phase, (busy, gap) in seconds.items():
            lines += [f'rootstock_step_device_seconds_total{{phase="{phase}",tp_rank="0"}} {busy}',
                      f'rootstock_step_gap_seconds_total{{phase="{phase}",tp_rank="0"}} {gap}']
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def test_gaps_over_gaps_and_steps_of_the_time_between(self):
        self.scrape("before-1x1.metrics", 10, decode=(1, 0.5), mixed=(1, 7))
        self.scrape("gpu-stack-1x1.metrics", 20, decode=(1.99, 0.51), mixed=(1, 7))
        self.scrape("gpu-stack-churn.metrics", 120, decode=(2.98, 0.52), mixed=(2.97, 7.03))
        entries = {"1x1": [{"case": "streams=1 prompt=8 base, decode", "value": 1}],
                   "churn": [{"case": "streams=4 that come and go, ended", "value": 150}]}
        found = {e["case"]: e for e in gpu_stack_report.idle_entries(self.folder, ["1x1"], entries)}
        self.assertEqual({case: e["value"] for case, e in found.items()}, {
            "streams=1, base and adapters=1 in turn, device idle between decode steps": 0.01,
            "streams=4 that come and go, begun a step": 0.5,
            "streams=4 that come and go, device idle between steps": round(0.04 / 3, 6),
            "streams=4 that come and go, device idle between decode steps": 0.01})
        self.assertEqual({(e.get("goal"), e.get("bound")) for case, e in found.items() if "idle" in case},
                         {(7, 0.01)})

    def test_the_hosts_processor_tells_nothing(self):
        for name in ("before-1x1.metrics", "gpu-stack-1x1.metrics"):
            self.scrape(name, 10)
        entries = {"1x1": [{"case": "streams=1 prompt=8 base, decode", "value": 1}]}
        self.assertEqual(gpu_stack_report.idle_entries(self.folder, ["1x1"], entries), [])


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
