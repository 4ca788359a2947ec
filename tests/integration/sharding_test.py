"""--lora-sharding through gRPC and mpirun: golden tokens in every way, what is held and exchanged."""

import json
import re
import unittest

import goldens
import rig

ALL_MODULES = {"tiny-llama-8q2kv": "llama-r3-all", "tiny-llama3-6q3kv": "llama3-r3-all"}


class Sharding(goldens.GoldenCase):
    def start(self, cluster, tp_size, *flags):
        pool = [] if "--num-pages" in flags else ["--page-tokens", 16, "--num-pages", 4000]
        cluster.start_group(tp_size, "--device", self.device, "--dtype", "f32", *pool, *flags)

    def residency(self, cluster, name):
        places = cluster.ctl("adapter", "show", name).json["residency"]
        places = [place for place in places if place["tier"] == "device"]
        self.assertEqual(len(places), 1)
        return places[0]

    def check_held(self, cluster, answers, tp_size, sharding):
        for name, golden in answers.items():
            if not golden["path"]:
                continue
            place = self.residency(cluster, name)
            self.assertEqual(place["sharding"], sharding, name)
            self.assertEqual(len(place["tp_rank_bytes"]), tp_size)
            for held in place["tp_rank_bytes"]:
                self.assertLessEqual(int(held), int(place["bytes"]), name)

    def collectives(self, cluster):
        """(all-reduces, gathers) of tp_rank 0 so far."""
        text = cluster.scrape(cluster.worker_ports()[0])
        return [int(float(re.search(
            rf'rootstock_collective_calls_total{{op="{op}",tp_rank="0"}} (\S+)', text)[1]))
                for op in ("allreduce", "allgather")]

    def added(self, cluster, name, prompt):
        before = self.collectives(cluster)
        self.assertEqual(cluster.generate(name, prompt, 5, "--ignore-eos").code, 0)
        # A rank shows a step when the next one or a tick has come.
        rig.wait_for("a tick", lambda: self.settled(cluster))
        return [now - then for now, then in zip(self.collectives(cluster), before, strict=True)]

    def settled(self, cluster):
        first = self.collectives(cluster)
        steps = cluster.group()["steps"]
        return first == self.collectives(cluster) and steps == cluster.group()["steps"]

    def check_collectives(self, cluster, answers, path, sharded):
        layers = json.loads((path / "config.json").read_text())["num_hidden_layers"]
        prompt = answers["base"]["prompts"][0]["prompt"].tolist()
        reduces, gathers = self.added(cluster, "base", prompt)
        self.assertGreater(gathers, 0)  # one a step: the logits
        self.assertEqual(reduces, gathers * (1 + 2 * layers))
        more_reduces, more_gathers = self.added(cluster, ALL_MODULES[path.name], prompt)
        self.assertEqual(more_gathers, gathers * (1 + (2 * layers if sharded else 0)))
        self.assertEqual(more_reduces, gathers * (1 + (4 if sharded else 2) * layers))

    def fully_sharded(self, model, path, tp_sizes):
        answers = goldens.GOLDENS[model]
        with rig.Cluster(path, "--lora-sharding", "fully-sharded",
                         adapter_root=rig.ROOT) as cluster:
            for tp_size in [n for n in tp_sizes if n <= self.most_ranks]:
                with self.subTest(model=model, tp_size=tp_size):
                    self.start(cluster, tp_size)
                    self.register(cluster, answers)
                    self.mixed_batch(cluster, answers)
                    self.check_held(cluster, answers, tp_size, "fully-sharded")
                    if path.name in ALL_MODULES:
                        self.check_collectives(cluster, answers, path, sharded=True)
                    self.evict_and_reload(cluster, answers, tp_size)
                    self.assertEqual(cluster.end_group(), 0, cluster.groups["g0"].text())

    def test_fully_sharded_at_2_4_8(self):
        model = "tests/models/tiny-llama-8q2kv"
        self.fully_sharded(model, rig.ROOT / model, [2, 4, 8])

    def test_fully_sharded_at_3(self):
        model = "tests/models/tiny-llama3-6q3kv"
        self.fully_sharded(model, rig.ROOT / model, [3])

    def test_replicated_adds_no_collective(self):
        path = rig.ROOT / "tests/models/tiny-llama-8q2kv"
        answers = goldens.GOLDENS["tests/models/tiny-llama-8q2kv"]
        with rig.Cluster(path, adapter_root=rig.ROOT) as cluster:
            self.start(cluster, 2)
            self.register(cluster, answers)
            self.mixed_batch(cluster, answers)
            self.check_held(cluster, answers, 2, "replicated")
            self.check_collectives(cluster, answers, path, sharded=False)

    def test_auto_goes_by_the_pool(self):
        """The same adapters in a large pool and in one that they fill; the same tokens."""
        path = rig.ROOT / "tests/models/tiny-llama-8q2kv"
        answers = goldens.GOLDENS["tests/models/tiny-llama-8q2kv"]
        with rig.Cluster(path, "--lora-sharding", "auto", adapter_root=rig.ROOT) as cluster:
            self.start(cluster, 2)
            self.register(cluster, answers)
            self.mixed_batch(cluster, answers)
            self.check_held(cluster, answers, 2, "replicated")
            pages = cluster.ctl("adapter", "show", ALL_MODULES[path.name]).json["receipt"]["pages"]
            self.assertEqual(pages[0]["sharding"], "replicated")
            self.assertEqual(cluster.end_group(), 0)
            self.start(cluster, 2, "--page-tokens", 4, "--num-pages", 4 * pages[0]["pages"] + 60)
            self.mixed_batch(cluster, answers)
            place = self.residency(cluster, ALL_MODULES[path.name])
            self.assertEqual(place["sharding"], "fully-sharded")


if __name__ == "__main__":
    unittest.main()
