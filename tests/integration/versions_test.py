"""Versions of adapters and aliases, by loractl on a running group."""

import resource
import subprocess
import threading
import unittest

import goldens
import rig

MODEL = "tests/models/tiny-llama-8q2kv"
GOLDEN = goldens.GOLDENS[MODEL]
VERSIONS = {"pirate@1": GOLDEN["llama-r3-all"], "pirate@2": GOLDEN["llama-r16-qv-rslora"]}
PROMPTS = [p["prompt"].tolist() for golden in VERSIONS.values() for p in golden["prompts"]]
SWITCHES = 200
TOKENS = 8


class Versions(unittest.TestCase):
    def setUp(self):
        self.cluster = self.enterContext(
            rig.Cluster(rig.ROOT / MODEL, "--max-logprobs", "20", adapter_root=rig.ROOT))
        self.cluster.start_group(2, "--dtype", "f32", "--page-tokens", 16)
        for resolved, golden in VERSIONS.items():
            added = self.cluster.ctl("adapter", "add", "pirate", golden["path"], "--new-version")
            self.assertEqual(added.code, 0, added.errors)
            self.assertEqual(f"pirate@{added.json['version']}", resolved)
        self.digests = {resolved: self.ctl("adapter", "show", resolved)["digest"]
                        for resolved in VERSIONS}
        self.wanted = {resolved: self.quiet_answers(resolved) for resolved in VERSIONS}

    def quiet_answers(self, resolved):
        """A version's tokens for every prompt; those that the goldens have are theirs."""
        answers = self.load(resolved, len(PROMPTS))
        tokens = [answers[f"{i}"]["samples"][0]["token_ids"] for i in range(len(PROMPTS))]
        for prompt in VERSIONS[resolved]["prompts"]:
            self.assertEqual(tokens[PROMPTS.index(prompt["prompt"].tolist())],
                             prompt["tokens"][:TOKENS].tolist(), resolved)
        return tokens

    def ctl(self, *arguments):
        answer = self.cluster.ctl(*arguments)
        self.assertEqual(answer.code, 0, answer.errors)
        return answer.json

    def load(self, model, count):
        """Requests for all prompts in turn; their answers by label."""
        return self.cluster.batch({
            f"{i}": {"model": model, "token_ids": PROMPTS[i % len(PROMPTS)],
                     "max_tokens": TOKENS, "ignore_eos": True, "echo_token_ids": True,
                     "request_id": f"{model}-{i}"}
            for i in range(count)})

    def check(self, label, answer):
        """It is wholly one version's: digest, name and tokens. Returns which."""
        self.assertNotIn("error", answer, label)
        resolved = answer["resolved_model"]
        self.assertEqual(answer["adapter_digest"], self.digests[resolved], label)
        self.assertEqual(answer["samples"][0]["token_ids"],
                         self.wanted[resolved][int(label) % len(PROMPTS)], (label, resolved))
        return resolved

    def test_switches_under_load_give_every_answer_one_version(self):
        self.ctl("alias", "set", "prod", "pirate@1")
        seen, errors, done = {}, [], threading.Event()

        def ask():
            try:
                while not done.is_set():
                    for label, answer in self.load("prod", 64).items():
                        resolved = self.check(label, answer)
                        seen[resolved] = seen.get(resolved, 0) + 1
            except BaseException as error:  # told below
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        for i in range(SWITCHES):
            alias = self.ctl("alias", "set", "prod", f"pirate@{2 - i % 2}")
            self.assertEqual(alias["revision"], str(i + 2))
        done.set()
        asking.join()
        if errors:
            raise errors[0]
        self.assertEqual(set(seen), set(VERSIONS), seen)
        # What it now stands for is what answers, and nothing else.
        self.assertEqual({self.check(*item) for item in self.load("prod", 8).items()},
                         {"pirate@1"})
        self.assertEqual(self.cluster.metric("adapter_alias_flips_total", result="ok"),
                         SWITCHES + 1)

    def test_a_canary_gives_a_request_the_same_version_after_a_crash(self):
        self.ctl("alias", "set", "canary", "pirate@1=3,pirate@2=1")
        first = {label: self.check(label, answer)
                 for label, answer in self.load("canary", 40).items()}
        self.assertEqual(set(first.values()), set(VERSIONS))
        self.cluster.coordinator.kill()
        self.cluster.start()
        self.cluster.wait_ready()
        again = {label: self.check(label, answer)
                 for label, answer in self.load("canary", 40).items()}
        self.assertEqual(again, first)

    def test_the_life_of_an_alias(self):
        self.ctl("alias", "set", "prod", "pirate@1")
        self.assertEqual(self.ctl("alias", "set", "prod", "pirate")["targets"][0]["version"], 2)
        held = self.cluster.ctl("adapter", "rm", "pirate")
        self.assertEqual(held.code, 1)
        self.assertIn("prod", held.errors)
        back = self.ctl("alias", "rollback", "prod")
        self.assertEqual((back["revision"], back["rolled_back_to"]), ("3", "1"))
        history = self.ctl("alias", "show", "prod")["history"]
        self.assertEqual([revision["targets"][0]["version"] for revision in history], [1, 2, 1])
        self.assertEqual([a["name"] for a in self.ctl("alias", "list")["aliases"]], ["prod"])
        taken = self.cluster.ctl("adapter", "add", "prod", VERSIONS["pirate@1"]["path"])
        self.assertEqual(taken.error["reason"], "name_taken")
        self.ctl("alias", "rm", "prod")
        gone = self.cluster.generate("prod", [1, 2], 1)
        self.assertEqual((gone.error["code"], gone.error["reason"]), ("NOT_FOUND", "unknown_model"))
        self.ctl("adapter", "rm", "pirate@2")
        answer = self.cluster.generate("pirate", [1, 2], 1)
        self.assertEqual(answer.json["resolved_model"], "pirate@1")

    def test_the_list_says_version_tier_pins_aliases_and_use(self):
        added = self.ctl("adapter", "add", "idle", VERSIONS["pirate@1"]["path"])
        self.ctl("alias", "set", "prod", "pirate@2")
        self.ctl("adapter", "pin", "pirate@2", "--group", "g0")
        idle, one, two = self.ctl("adapter", "list")["adapters"]
        self.assertEqual((idle["name"], idle["version"], idle["digest"], idle["last_used_unix_ms"]),
                         ("idle", 1, added["digest"], "0"))
        self.assertEqual((one["version"], one["newest"], one["pins"], one["aliases"]),
                         (1, False, [], []))
        self.assertEqual((two["version"], two["newest"], two["pins"], two["aliases"]),
                         (2, True, ["g0"], ["prod"]))
        self.assertGreater(int(two["last_used_unix_ms"]), 0)
        text = subprocess.run(
            [rig.BIN / "loractl", "--address", self.cluster.address, "adapter", "list"],
            capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertRegex(text[0], r"^name +tier +digest .*pins +aliases +last used")
        self.assertRegex(text[1], r"^idle@1 +device .* - +- +never")
        self.assertRegex(text[3], r"^pirate@2 +device .* g0 +prod +2\d{3}-")
        self.assertEqual(self.ctl("adapter", "unpin", "pirate@2", "--group", "g0")["pins"], [])

    def test_unload_frees_the_group_and_rm_everything(self):
        pages = self.cluster.metric("pages", group="g0", owner="adapter")
        self.assertEqual(self.cluster.ctl("adapter", "pin", "pirate@1").code, 0)
        held = self.cluster.ctl("adapter", "unload", "pirate")
        self.assertEqual((held.code, held.error["code"]), (1, "FAILED_PRECONDITION"), held.errors)
        self.ctl("adapter", "unpin", "pirate@1")
        freed = self.ctl("adapter", "unload", "pirate@1")
        self.assertEqual(self.cluster.group()["resident_adapters"], [self.digests["pirate@2"]])
        left = self.cluster.metric("pages", group="g0", owner="adapter")
        self.assertLess(left, pages)
        self.assertGreater(int(freed["device_bytes"]), 0)
        for label, answer in self.load("pirate@1", len(PROMPTS)).items():
            self.assertEqual(self.check(label, answer), "pirate@1")
        gone = self.ctl("adapter", "rm", "pirate")
        self.assertGreater(int(gone["device_bytes"]), int(freed["device_bytes"]))
        self.assertGreater(int(gone["freed_bytes"]), 0)
        self.assertEqual(self.cluster.metric("pages", group="g0", owner="adapter"), 0)
        self.assertEqual(list((self.cluster.folder / "data/blobs").iterdir()), [])

    def test_f11_a_full_disk_refuses_changes_and_answers_go_on(self):
        """A limit on the size of files stands for a disk that takes no more."""
        pid = self.cluster.coordinator.popen.pid
        before = self.ctl("adapter", "list")["adapters"]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        for change in (["alias", "set", "prod", "pirate@1"], ["adapter", "pin", "pirate@1"],
                       ["adapter", "rm", "pirate@1"]):
            refused = self.cluster.ctl(*change)
            self.assertEqual((refused.code, refused.error["reason"]), (1, "io_error"), change)
            self.assertIn("SQLite", refused.errors)
        for label, answer in self.load("pirate@1", 8).items():
            self.assertEqual(self.check(label, answer), "pirate@1")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        after = self.ctl("adapter", "list")["adapters"]
        self.assertEqual([a["digest"] for a in after], [a["digest"] for a in before])
        self.ctl("alias", "set", "prod", "pirate@1")


if __name__ == "__main__":
    unittest.main()
