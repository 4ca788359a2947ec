"""The conformance cases through gRPC and mpirun, at every tp_size that their models allow."""

import json
import pathlib
import unittest

import rig


def load_cases():
    """{model: {adapter: expectation}}, the base under None."""
    cases = {}
    for file in sorted(rig.CASES.glob("models/*/expect.json")):
        cases[file.parent.name] = {None: json.loads(file.read_text())}
    for file in sorted(rig.CASES.glob("adapters/*/expect.json")):
        expect = json.loads(file.read_text())
        cases[expect["model"]][file.parent.name] = expect
    return cases


CASES = load_cases()


def served(cases):
    """Expectations of what can be asked, by the name to ask for."""
    return {name or "base": expect for name, expect in cases.items()
            if expect["verdict"] != "refuse"}


class Conformance(unittest.TestCase):
    maxDiff = None

    def check_receipt(self, name, expect, receipt):
        modules = {m["module"]: m for m in receipt["modules"]}
        self.assertEqual(sorted(modules), sorted(expect["modules"]), name)
        for path, want in expect["modules"].items():
            got = modules[path]
            self.assertEqual(got["lora_rank"], want["lora_rank"], (name, path))
            self.assertAlmostEqual(got["scale"], want["scale"], delta=1e-5 * abs(want["scale"]))
            self.assertAlmostEqual(got["delta_frobenius"], want["delta_frobenius"],
                                   delta=1e-3 * want["delta_frobenius"] + 1e-9, msg=(name, path))

    def check_refusal(self, cluster, name, expect):
        answer = cluster.register(name, rig.CASES / "adapters" / name)
        self.assertEqual(answer.code, 1, (name, answer.text))
        self.assertIn(answer.error["reason"], expect["reasons"], (name, answer.errors))
        for word in expect["mentions"]:
            self.assertIn(word.lower(), answer.error["message"].lower(), name)
        self.assertEqual(cluster.generate(name, [1], 1).error["code"], "NOT_FOUND")

    def register_all(self, cluster, cases):
        for name, expect in cases.items():
            if name is None:
                continue
            if expect["verdict"] == "refuse":
                self.check_refusal(cluster, name, expect)
            else:
                answer = cluster.register(name, rig.CASES / "adapters" / name)
                self.assertEqual(answer.code, 0, (name, answer.errors))
                self.check_receipt(name, expect, answer.json["receipt"])

    def mixed_batch(self, cluster, cases):
        """Every probe at once, arriving one after the other."""
        requests, wanted = {}, {}
        for name, expect in served(cases).items():
            for i, probe in enumerate(expect["probes"]):
                label = f"{name}#{i}"
                requests[label] = {"model": name, "token_ids": probe["prompt"],
                                   "max_tokens": len(probe["greedy"]),
                                   "delay_ms": 3 * len(requests)}
                wanted[label] = probe["greedy"]
        for name in cases:  # misspelt, in the midst of the others
            requests[f"{name}?"] = {"model": f"{name or 'base'}.", "token_ids": [1], "delay_ms": 5}
        answers = cluster.batch(requests)
        for name in cases:
            self.assertEqual(answers[f"{name}?"]["error"]["code"], "NOT_FOUND")
        for label, tokens in wanted.items():
            answer = answers[label]
            self.assertNotIn("error", answer, label)
            self.assertEqual(answer["samples"][0]["token_ids"], tokens, label)
            self.assertEqual(answer["samples"][0]["finish_reason"], "length")
            self.assertEqual(answer["model"], label.split("#")[0])
            self.assertEqual(answer["usage"], {"prompt_tokens": len(requests[label]["token_ids"]),
                                               "completion_tokens": len(tokens)})

    def logits(self, cluster, cases):
        """The whole vocabulary's logprobs of the first token."""
        for name, expect in served(cases).items():
            probe = expect["probes"][0]
            want = rig.log_softmax(probe["last_logits"])
            answer = cluster.generate(name, probe["prompt"], 1, "--logprobs", len(want))
            self.assertEqual(answer.code, 0, answer.errors)
            top = answer.json["samples"][0]["logprobs"][0]["top"]
            got = {entry["token_id"]: entry["logprob"] for entry in top}
            self.assertEqual(len(got), len(want), name)
            worst = max(abs(got[i] - value) for i, value in enumerate(want))
            self.assertLess(worst, 1e-3, name)

    def evict_and_reload(self, cluster, cases, tp_size):
        """A group too small for all adapters gives the same tokens, again and again."""
        pages = {}
        for name, expect in cases.items():
            if name and expect["verdict"] == "accept":
                receipt = cluster.ctl("adapter", "show", name).json["receipt"]
                pages[name] = receipt["pages"][0]["pages"]
        cluster.end_group()
        longest = max(len(p["prompt"]) + len(p["greedy"])
                      for e in served(cases).values() for p in e["probes"])
        kv = -(-longest // 16)
        budget = 1 + max(pages.values(), default=0) + kv
        cluster.start_group(tp_size, "--num-pages", budget, "--page-tokens", 16)
        for _ in range(2):
            for name, expect in served(cases).items():
                probe = expect["probes"][0]
                answer = cluster.generate(name, probe["prompt"], len(probe["greedy"]))
                self.assertEqual(answer.code, 0, answer.errors)
                self.assertEqual(answer.tokens, probe["greedy"], name)
            self.assertTrue(cluster.group()["resident_adapters"])
            # An answer whose KV takes every page.
            self.assertEqual(cluster.generate("base", [1], 16 * (budget - 1)).code, 0)
            self.assertEqual(cluster.group()["resident_adapters"], [])
        self.mixed_batch(cluster, cases)  # adapters and KV take each other's pages

    def run_model(self, model):
        cases = CASES[model]
        with rig.Cluster(rig.CASES / "models" / model) as cluster:
            for tp_size in rig.tp_sizes(cluster.model):
                with self.subTest(model=model, tp_size=tp_size):
                    cluster.start_group(tp_size)
                    self.register_all(cluster, cases)
                    self.mixed_batch(cluster, cases)
                    self.logits(cluster, cases)
                    if tp_size in (1, rig.tp_sizes(cluster.model)[-1]):
                        self.evict_and_reload(cluster, cases, tp_size)
                    self.assertEqual(cluster.end_group(), 0, cluster.groups["g0"].text())
            self.assertTrue(cluster.coordinator.running)


def add_tests():
    for model in CASES:
        name = "test_" + pathlib.Path(model).name.replace("-", "_")
        setattr(Conformance, name, lambda self, model=model: self.run_model(model))


add_tests()

if __name__ == "__main__":
    unittest.main()
