"""Asks what tests/golden answers: base and adapters in one staggered batch."""

import json
import pathlib
import re
import sys
import unittest

import numpy as np
import rig

GOLDEN = rig.ROOT / "tests/golden"
TYPES = {"F32": np.float32, "I32": np.int32}
TOP = 32


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


def leave_out(case, most_ranks):
    """A case's tests named ..._at_N of more ranks than there are GPUs are none of its tests, and
    are named."""
    left_out = [name for name in dir(case)
                if (size := re.search(r"^test_.*_at_(\d+)$", name)) and int(size[1]) > most_ranks]
    for name in left_out:
        setattr(case, name, None)
    if left_out:
        print(f"with {most_ranks} GPUs not run: {', '.join(left_out)}", file=sys.stderr)


class GoldenCase(unittest.TestCase):
    device = "cpu"
    pool = ()  # flags; without, a group takes a GPU's memory
    most_ranks = 8

    def sizes(self, tp_sizes):
        """Those that there are ranks for; the others are named."""
        there = [n for n in tp_sizes if n <= self.most_ranks]
        self.assertTrue(there, f"no {self.device} for a rank")
        if len(there) < len(tp_sizes):
            print(f"{self.id()}: with {self.most_ranks} GPUs not run: tp_size",
                  *[n for n in tp_sizes if n not in there], file=sys.stderr)
        return there

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
        longest = max(len(g["prompts"][0]["prompt"]) + 16 for g in goldens.values())
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
