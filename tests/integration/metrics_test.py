"""What both sides report: names, outcomes, and nothing that grows with adapters."""

import json
import os
import re
import signal
import subprocess
import unittest

import rig

MODEL = rig.CASES / "models/tiny-llama"
PROBE = json.loads((MODEL / "expect.json").read_text())["probes"][0]
ADAPTERS = ["ok-plain-qv", "ok-all-linear", "ok-patterns", "ok-rslora-r16"]
TIERS = {"device", "host", "disk", "object"}
SOURCES = {"host", "disk", "coordinator", "object"}
LOAD_SECONDS = {"0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1",
                "2.5", "5", "10", "30", "+Inf"}
# What dashboards and rules of adapters are written for: names, types, labels and their values.
PROMISED = {
    "pages": ("gauge", {"group": {"g0"}, "owner": {"kv", "adapter", "free"}}),
    "page_evictions_total": ("counter", {
        "owner": {"kv", "adapter"}, "reason": {"pressure", "quota", "unload", "retire"}}),
    "queue_wait_reason_seconds": ("histogram", {"reason": {"load", "pages", "fairness"}}),
    "time_to_first_token_seconds": ("histogram", {
        "tenant_class": {"default"}, "adapter_state": {"base", "hot", "warm", "cold"}}),
    "adapters": ("gauge", {"state": {"staged", "active", "retired", "failed"}}),
    "adapters_resident": ("gauge", {"group": {"g0", ""}, "tier": TIERS}),
    "adapter_resident_bytes": ("gauge", {"group": {"g0", ""}, "tier": TIERS}),
    "adapter_loads_total": ("counter", {
        "source": SOURCES, "result": {"ok", "io_error", "corrupt", "timeout", "no_space"}}),
    "adapter_load_duration_seconds": ("histogram", {"source": SOURCES, "le": LOAD_SECONDS}),
    "adapter_evictions_total": ("counter", {
        "tier": {"device", "host", "disk"}, "reason": {"pressure", "quota", "unpin", "retire"}}),
    "adapter_lookup_total": ("counter", {"result": {
        "device_hit", "host_hit", "disk_hit", "coordinator_fetch", "object_fetch", "unknown"}}),
    "adapter_upload_total": ("counter", {"result": {"ok", "rejected", "error"}}),
    "adapter_rejects_total": ("counter", {"reason": {
        "rank_too_high", "module_unknown", "shape_mismatch", "dtype", "dora", "bias",
        "base_mismatch", "nonfinite", "header_too_large", "header_invalid", "truncated",
        "overlap_or_hole", "digest_mismatch", "path_invalid", "size_limit", "quota",
        "unknown_field", "peft_type", "modules_to_save", "unpaired_tensor", "nothing_attached",
        "unattached_tensor", "pickle", "config_invalid", "unsupported_field", "duplicate",
        "row_too_long"}}),
    "adapter_alias_flips_total": ("counter", {"result": {"ok", "refused", "error"}}),
    "registry_revision": ("gauge", {}),
    "registry_log_fsync_duration_seconds": ("histogram", {}),
    "registry_log_bytes": ("gauge", {}),
    "registry_pinned_adapters": ("gauge", {"tenant_class": {"default"}}),
    "registry_refcount_leaks_total": ("counter", {}),
}
LABELS = {"tenant_class": "default", "operation": "completion"}


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(rig.Cluster(MODEL))
        cls.cluster.start_group(2)
        for name in ADAPTERS:
            cls.cluster.register(name, name)

    def ended(self, outcome):
        return self.cluster.metric("requests_total", outcome=outcome, **LABELS)

    def check_clean(self, text):
        promtool = os.environ["ROOTSTOCK_PROMTOOL"]
        check = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True,
                               text=True, check=False)
        self.assertEqual(check.returncode, 0, check.stdout + check.stderr)

    def test_promtool_finds_nothing(self):
        self.cluster.generate("ok-plain-qv", PROBE["prompt"], 5)
        self.check_clean(self.cluster.scrape())
        ports = self.cluster.worker_ports()
        self.assertEqual(len(ports), 2)
        for port in ports:
            text = self.cluster.scrape(port)
            self.check_clean(text)
            self.assertIn("rootstock_step_duration_seconds_bucket", text)
            segments = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                        if line.startswith('rootstock_lora_segments_total{kernel="shrink"')]
            self.assertGreater(segments[0], 0)
            self.assertIn("process_resident_memory_bytes", text)
            steps = [line for line in text.splitlines()
                     if line.startswith("rootstock_tp_rank_skew_seconds_count")]
            self.assertEqual(len(steps), 1 if 'tp_rank="0"' in text else 0)
            for line in steps:
                self.assertGreater(float(line.rsplit(" ", 1)[1]), 0)

    def test_the_series_of_adapters_are_those_promised(self):
        kinds, labels = {}, {}
        for line in self.cluster.scrape().splitlines():
            if line.startswith("# TYPE rootstock_"):
                name, kinds[name] = line.removeprefix("# TYPE rootstock_").split()
            elif line.startswith("rootstock_"):
                series, pairs = re.match(r"rootstock_(\w+)(?:\{(.*)\})? ", line).groups()
                name = re.sub("_(bucket|sum|count)$", "", series)
                for label, value in re.findall(r'(\w+)="([^"]*)"', pairs or ""):
                    labels.setdefault(name, {}).setdefault(label, set()).add(value)
        for name, (kind, promised) in PROMISED.items():
            with self.subTest(name):
                self.assertEqual(kinds.get(name), kind)
                found = labels.get(name, {})
                self.assertEqual({label: values for label, values in found.items()
                                  if label != "le" or "le" in promised}, promised)

    def test_each_request_counts_once_by_its_outcome(self):
        before = {o: self.ended(o) for o in ("ok", "client_error")}
        self.assertIsNotNone(before["ok"])
        self.cluster.generate("base", PROBE["prompt"], 5)
        self.cluster.generate("ok-plain-qv", PROBE["prompt"], 5)
        self.cluster.generate("nobody", PROBE["prompt"], 5)
        self.cluster.generate("base", PROBE["prompt"], -1)
        rig.wait_for("the counts", lambda: self.ended("ok") == before["ok"] + 2)
        self.assertEqual(self.ended("client_error"), before["client_error"] + 2)

    def test_tokens_are_counted_as_the_client_hears_of_them(self):
        output = self.cluster.metric("output_tokens_total", tenant_class="default")
        answer = self.cluster.generate("ok-all-linear", PROBE["prompt"], 7)
        self.assertEqual(answer.json["usage"]["completion_tokens"], 7)
        rig.wait_for("the tokens", lambda: self.cluster.metric(
            "output_tokens_total", tenant_class="default") == output + 7)

    def test_a_client_that_does_not_read_is_waited_for_and_counted(self):
        def waited():
            return self.cluster.metric("stream_backpressure_seconds_total")
        before = waited()
        self.assertIsNotNone(before)
        stream = self.cluster.stream("--model", "base", "--token-ids", "1,2", "--ignore-eos",
                                     "--n", "128", "--logprobs", "20")
        rig.wait_for("the stream", lambda: self.cluster.group()["pages_kv"] > 0)
        stream.send(signal.SIGSTOP)
        rig.wait_for("the wait", lambda: waited() > before + 0.2)
        stream.send(signal.SIGCONT)
        self.assertEqual(stream.wait(), 0)

    def test_a_mixed_batch_runs_together(self):
        names = ["base", *ADAPTERS]
        requests = {f"{name}#{i}": {"model": name, "token_ids": [*PROBE["prompt"], i],
                                    "max_tokens": 60}
                    for i in range(3) for name in names}
        answers = self.cluster.batch(requests)
        for label, answer in answers.items():  # each under its own name
            self.assertEqual(answer["model"], label.split("#")[0])
            self.assertEqual(bool(answer["adapter_digest"]), answer["model"] != "base")
        group = self.cluster.group()
        self.assertEqual(group["widest_step"]["distinct_adapters"], len(ADAPTERS))
        self.assertGreater(group["widest_step"]["rows"], len(ADAPTERS))

    def test_idle_adapters_stay_visible(self):
        for name in ADAPTERS:
            self.cluster.generate(name, PROBE["prompt"], 2)
        digests = {a["digest"] for a in self.cluster.ctl("adapter", "list").json["adapters"]}
        self.assertEqual(set(self.cluster.group()["resident_adapters"]), digests)
        self.assertEqual(self.cluster.metric("adapters_resident", group="g0", tier="device"),
                         len(ADAPTERS))
        self.assertEqual(self.cluster.metric("adapters", state="active"), len(ADAPTERS))

    def test_many_adapters_are_all_listed_and_series_do_not_grow(self):
        def series():
            return sorted(line.rsplit(" ", 1)[0] for line in self.cluster.scrape().splitlines()
                          if line.startswith("rootstock_"))
        before = series()
        extra = {f"extra-{i}" for i in range(110)}  # more than a page of List
        for i, name in enumerate(sorted(extra)):
            self.assertEqual(self.cluster.register(name, ADAPTERS[i % 4]).code, 0)
            if i % 30 == 0:
                self.cluster.generate(name, PROBE["prompt"], 2)
        self.assertEqual(series(), before)
        listed = self.cluster.ctl("adapter", "list").json["adapters"]
        self.assertEqual(sorted(a["name"] for a in listed), sorted(extra | set(ADAPTERS)))
        self.assertTrue(all(a["state"] == "active" and a["lora_ranks"] for a in listed))
        for name in extra:
            self.cluster.ctl("adapter", "rm", name)

    def test_rejects_are_counted_by_reason(self):
        before = self.cluster.metric("adapter_rejects_total", reason="dora")
        self.cluster.register("d", "no-dora")
        self.assertEqual(self.cluster.metric("adapter_rejects_total", reason="dora"), before + 1)

    def test_pages_add_up(self):
        group = self.cluster.group()
        values = {owner: self.cluster.metric("pages", group="g0", owner=owner)
                  for owner in ("kv", "adapter", "free")}
        self.assertEqual(sum(values.values()), group["pages"] - 1, values)


if __name__ == "__main__":
    unittest.main()
