"""Adapters of clients that share no path with the coordinator."""

import json
import unittest

import rig

MODEL = rig.CASES / "models/tiny-llama"
GOOD = rig.CASES / "adapters/ok-plain-qv"


class Uploads(unittest.TestCase):
    """loractl adapter upload."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(
            rig.Cluster(MODEL, "--max-adapter-bytes", "30000", adapter_root=""))
        cls.cluster.start_group(2)

    def check_answers(self, name, adapter):
        expect = json.loads((adapter / "expect.json").read_text())
        for probe in expect["probes"]:
            answer = self.cluster.generate(name, probe["prompt"], len(probe["greedy"]))
            self.assertEqual(answer.tokens, probe["greedy"], answer.errors)

    def unfinished(self):
        return list((self.cluster.folder / "data/uploads").iterdir())

    def test_an_uploaded_adapter_answers(self):
        answer = self.cluster.ctl("adapter", "upload", "plain", GOOD)
        self.assertEqual(answer.code, 0, answer.errors)
        self.assertEqual(answer.json["digest"],
                         self.cluster.ctl("adapter", "show", "plain").json["digest"])
        self.check_answers("plain", GOOD)

    def test_goes_on_after_a_restart_of_the_coordinator(self):
        taken = self.cluster.ctl("adapter", "upload", "base", GOOD)
        self.assertEqual((taken.code, taken.error["reason"]), (1, "name_taken"))
        self.assertEqual(len(self.unfinished()), 1)
        self.cluster.coordinator.kill()
        self.cluster.start()
        self.cluster.wait_ready()
        again = self.cluster.ctl("adapter", "upload", "resumed", GOOD)
        self.assertEqual(again.code, 0, again.errors)
        self.assertRegex(again.errors, r"going on with an upload that has (\d+) of \1 bytes")
        self.assertEqual(self.unfinished(), [])
        self.check_answers("resumed", GOOD)

    def test_refusals_have_their_reason_and_register_nothing(self):
        for adapter, reason in (("no-nan", "nonfinite"), ("no-dora", "dora"),
                                ("no-truncated", "truncated")):
            answer = self.cluster.ctl("adapter", "upload", adapter, rig.CASES / "adapters" / adapter)
            self.assertEqual((answer.code, answer.error["reason"]), (1, reason), answer.errors)
            self.assertEqual(self.cluster.generate(adapter, [1], 1).error["code"], "NOT_FOUND")
        large = self.cluster.folder / "large"
        large.mkdir()
        (large / "adapter_config.json").write_text("{}")
        (large / "adapter_model.safetensors").write_bytes(bytes(30001))
        answer = self.cluster.ctl("adapter", "upload", "large", large)
        self.assertEqual((answer.code, answer.error["reason"]), (1, "size_limit"))
        answer = self.cluster.ctl("adapter", "upload", "nothing", self.cluster.folder / "none")
        self.assertEqual(answer.code, 2)
        self.assertIn("adapter_config.json: can't be read", answer.errors)


if __name__ == "__main__":
    unittest.main()
