"""tests/golden through gRPC and mpirun: base and adapters in one staggered batch, 64 tokens each."""

import json
import pathlib
import subprocess
import sys
import unittest

import numpy as np
import rig

GOLDEN = rig.ROOT / "tests/golden"
TYPES = {"F32": np.float32, "I32": np.int32}
TOP = 32


def smollm2():
    """The model's directory; converted once and kept."""
    out = subprocess.run([sys.executable, str(rig.ROOT / "deploy/models/smollm2.py")],
                         capture_output=True, text=True, check=True)
    return pathlib.Path(out.stdout.strip().splitlines()[-1])


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[start + e["data_offsets"][0]:start + e["data_offsets"][1]],
                                TYPES[e["dtype"]]).reshape(e["shape"])
            for name, e in header.items()}


def load_goldens():
    """{model: {name to ask for: {"path", "prompts": [{"prompt", "tokens", ...}]}}}"""
    models = {}
    for file in sorted(GOLDEN.glob("*--*.json")):
        document = json.loads(file.read_text())
        arrays = read_safetensors(file.with_suffix(".safetensors"))
        prompts = [{key: arrays[f"{i}.{key}"]
                    for key in ("prompt", "tokens", "logits", "top_ids", "top_logits")} | about
                   for i, about in enumerate({k: v for k, v in p.items() if k != "prompt"}
                                             for p in document["prompts"])]
        path = document["adapter"] and document["adapter"]["path"]
        name = pathlib.Path(path).name if path else "base"
        models.setdefault(document["model"], {})[name] = {"path": path, "prompts": prompts}
    return models


GOLDENS = load_goldens()


class Goldens(unittest.TestCase):
    device = "cpu"
    most_ranks = 8

    def register(self, cluster, goldens):
        for name, golden in goldens.items():
            if golden["path"]:
                answer = cluster.register(name, golden["path"])
                self.assertEqual(answer.code, 0, answer.errors)

    def requests(self, goldens, tokens):
        requests, wanted = {}, {}
        for name, golden in goldens.items():
            for i, prompt in enumerate(golden["prompts"]):
                label = f"{name}#{i}"
                wanted[label] = prompt
                requests[label] = {
                    "model": name, "token_ids": prompt["prompt"].tolist(), "max_tokens": tokens,
                    "ignore_eos": True, "echo_token_ids": True, "delay_ms": 3 * len(requests)}
        return requests, wanted

    def mixed_batch(self, cluster, goldens):
        requests, wanted = self.requests(goldens, 64)
        for request in requests.values():
            request["logprobs"] = TOP
        answers = cluster.batch(requests)
        for label, golden in wanted.items():
            sample = answers[label]["samples"][0]
            self.assertEqual(sample["token_ids"], golden["tokens"].tolist(), label)
            for step, got in enumerate(sample["logprobs"][1:]):
                self.check_step(label, got, golden["top_ids"][step], golden["top_logits"][step])

    def check_step(self, label, got, ids, logits):
        """Logits from logprobs: up to a constant of the step."""
        logprobs = {entry["token_id"]: entry["logprob"] for entry in got["top"]}
        common = [(logprobs[i], logit) for i, logit in zip(ids.tolist(), logits) if i in logprobs]
        self.assertGreaterEqual(len(common), TOP - 2, label)
        shift = np.array([a - b for a, b in common])
        self.assertLess(np.abs(shift - shift.mean()).max(), 1e-3, label)

    def first_logits(self, cluster, goldens):
        for name, golden in goldens.items():
            prompt = golden["prompts"][0]
            want = prompt["logits"].astype(np.float64)
            want -= want.max() + np.log(np.exp(want - want.max()).sum())
            answer = cluster.generate(name, prompt["prompt"].tolist(), 1, "--logprobs", len(want))
            got = np.zeros(len(want))
            for entry in answer.json["samples"][0]["logprobs"][0]["top"]:
                got[entry["token_id"]] = entry["logprob"]
            self.assertLess(np.abs(got - want).max(), 1e-3, name)

    def evict_and_reload(self, cluster, goldens, tp_size):
        pages = [cluster.ctl("adapter", "show", name).json["receipt"]["pages"][0]["pages"]
                 for name, golden in goldens.items() if golden["path"]]
        cluster.end_group()
        longest = max(len(p["prompt"]) + 16 for g in goldens.values() for p in g["prompts"])
        cluster.start_group(tp_size, "--device", self.device, "--dtype", "f32", "--page-tokens", 16,
                            "--num-pages", 1 + max(pages) + -(-longest // 16))
        for _ in range(2):
            for name, golden in goldens.items():
                prompt = golden["prompts"][0]
                answer = cluster.generate(name, prompt["prompt"].tolist(), 16, "--ignore-eos",
                                          "--echo-token-ids")
                self.assertEqual(answer.tokens, prompt["tokens"][:16].tolist(), name)
        self.assertGreater(cluster.metric("adapter_evictions_total", tier="device",
                                          reason="pressure"), 0)

    def run_model(self, model, path, tp_sizes):
        tp_sizes = [n for n in tp_sizes if n <= self.most_ranks]
        if self.device == "cpu":  # a GPU's sampler gives 128 logprobs at most
            self.all_logits(model, path, tp_sizes)
        self.batches(model, path, tp_sizes)

    def all_logits(self, model, path, tp_sizes):
        goldens = GOLDENS[model]
        # All logits of a token fill a message.
        with rig.Cluster(path, "--max-logprobs", "200000", "--max-num-seqs", "1",
                         adapter_root=rig.ROOT) as cluster:
            for tp_size in tp_sizes:
                with self.subTest(model=model, tp_size=tp_size):
                    cluster.start_group(tp_size, "--device", self.device, "--dtype", "f32",
                                        "--threads", 2 if tp_size == 1 else 1)
                    self.register(cluster, goldens)
                    self.first_logits(cluster, goldens)
                    self.assertEqual(cluster.end_group(), 0, cluster.groups["g0"].text())

    def batches(self, model, path, tp_sizes):
        goldens = GOLDENS[model]
        with rig.Cluster(path, "--max-logprobs", "128", adapter_root=rig.ROOT) as cluster:
            for tp_size in tp_sizes:
                with self.subTest(model=model, tp_size=tp_size):
                    cluster.start_group(tp_size, "--device", self.device, "--dtype", "f32",
                                        "--page-tokens", 16, "--threads", 2 if tp_size == 1 else 1)
                    self.register(cluster, goldens)
                    self.mixed_batch(cluster, goldens)
                    if tp_size == tp_sizes[-1]:
                        self.evict_and_reload(cluster, goldens, tp_size)
                    self.assertEqual(cluster.end_group(), 0, cluster.groups["g0"].text())

    def test_smollm2(self):
        self.run_model("SmolLM2-135M-Instruct", smollm2(), [1, 2, 3])


def add_tests():
    for model in GOLDENS:
        path = rig.ROOT / model
        if path.is_dir():
            setattr(Goldens, "test_" + path.name.replace("-", "_"),
                    lambda self, m=model, p=path: self.run_model(m, p, rig.tp_sizes(p, 8)))


add_tests()

if __name__ == "__main__":
    unittest.main()
