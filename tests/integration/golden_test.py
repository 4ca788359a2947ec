"""tests/golden through gRPC and mpirun: base and adapters in one staggered batch, 64 tokens each."""

import pathlib
import subprocess
import sys
import unittest

import goldens
import rig


def smollm2():
    """The model's directory; converted once and kept."""
    out = subprocess.run([sys.executable, str(rig.ROOT / "deploy/models/smollm2.py")],
                         capture_output=True, text=True, check=True)
    return pathlib.Path(out.stdout.strip().splitlines()[-1])


class Goldens(goldens.GoldenCase):
    reload_at_every_size = False  # else at the largest

    def run_model(self, model, path, tp_sizes):
        tp_sizes = self.sizes(tp_sizes)
        self.all_logits(model, path, tp_sizes)
        self.batches(model, path, tp_sizes)

    def all_logits(self, model, path, tp_sizes):
        answers = goldens.GOLDENS[model]
        # All logits of a token fill a message.
        with rig.Cluster(path, "--max-logprobs", "200000", "--max-num-seqs", "1",
                         adapter_root=rig.ROOT) as cluster:
            for tp_size in tp_sizes:
                with self.subTest(model=model, tp_size=tp_size):
                    cluster.start_group(tp_size, "--device", self.device, "--dtype", "f32",
                                        *self.pool, "--threads", 2 if tp_size == 1 else 1)
                    self.register(cluster, answers)
                    self.first_logits(cluster, answers)
                    self.assertEqual(cluster.end_group(), 0, cluster.groups["g0"].text())

    def batches(self, model, path, tp_sizes):
        answers = goldens.GOLDENS[model]
        with rig.Cluster(path, "--max-logprobs", "128", adapter_root=rig.ROOT) as cluster:
            for tp_size in tp_sizes:
                with self.subTest(model=model, tp_size=tp_size):
                    cluster.start_group(tp_size, "--device", self.device, "--dtype", "f32",
                                        "--page-tokens", 16, *self.pool, "--threads",
                                        2 if tp_size == 1 else 1)
                    self.register(cluster, answers)
                    self.mixed_batch(cluster, answers)
                    if self.reload_at_every_size or tp_size == tp_sizes[-1]:
                        self.evict_and_reload(cluster, answers, tp_size)
                    self.assertEqual(cluster.end_group(), 0, cluster.groups["g0"].text())

    def test_smollm2(self):
        self.run_model("SmolLM2-135M-Instruct", smollm2(), [1, 2, 3])


def add_tests():
    for model in goldens.GOLDENS:
        path = rig.ROOT / model
        if path.is_dir():
            setattr(Goldens, "test_" + path.name.replace("-", "_"),
                    lambda self, m=model, p=path: self.run_model(m, p, rig.tp_sizes(p, 8)))


add_tests()

if __name__ == "__main__":
    unittest.main()
