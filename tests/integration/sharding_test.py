"""--lora-sharding through gRPC and mpirun: golden tokens in every way, what is held and exchanged."""

import contextlib
import io
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

    def fully_sharded(self, model, path, tp_size):
        answers = goldens.GOLDENS[model]
        with rig.Cluster(path, "--lora-sharding", "fully-sharded",
                         adapter_root=rig.ROOT) as cluster:
            self.start(cluster, tp_size)
            self.register(cluster, answers)
            self.mixed_batch(cluster, answers)
            self.check_held(cluster, answers, tp_size, "fully-sharded")
            if path.name in ALL_MODULES:
                self.check_collectives(cluster, answers, path, sharded=True)
            self.evict_and_reload(cluster, answers, tp_size)
            self.assertEqual(cluster.end_group(), 0, cluster.groups["g0"].text())

    def fully_sharded_8q2kv(self, tp_size):
        model = "tests/models/tiny-llama-8q2kv"
        self.fully_sharded(model, rig.ROOT / model, tp_size)

    def test_fully_sharded_at_2(self):
        self.fully_sharded_8q2kv(2)

    def test_fully_sharded_at_4(self):
        self.fully_sharded_8q2kv(4)

    def test_fully_sharded_at_8(self):
        self.fully_sharded_8q2kv(8)

    def test_fully_sharded_at_3(self):
        model = "tests/models/tiny-llama3-6q3kv"
        self.fully_sharded(model, rig.ROOT / model, 3)

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


class LeftOut(unittest.TestCase):
    """What there are no GPUs for."""

    def test_sizes_without_gpus_are_no_tests_and_named(self):
        class OnTwo(Sharding):
            pass

        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            goldens.leave_out(OnTwo, 2)
        there = unittest.TestLoader().getTestCaseNames(OnTwo)
        self.assertIn("test_fully_sharded_at_2", there)
        for size in (3, 4, 8):
            self.assertNotIn(f"test_fully_sharded_at_{size}", there)
            self.assertIn(f"test_fully_sharded_at_{size}", said.getvalue())
        self.assertIn("test_fully_sharded_at_8", unittest.TestLoader().getTestCaseNames(Sharding))

    def test_sizes_of_a_list_are_never_none(self):
        class OnTwo(goldens.GoldenCase):
            most_ranks = 2

        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(OnTwo("sizes").sizes([1, 2, 4, 8]), [1, 2])
            with self.assertRaises(AssertionError):
                OnTwo("sizes").sizes([4, 8])
        self.assertIn("tp_size 4 8", said.getvalue())


if __name__ == "__main__":
    unittest.main()
