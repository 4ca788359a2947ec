"""loractl as people meet it: what it says, its exit codes, and what becomes of its output."""

import http.client
import json
import re
import signal
import subprocess
import unittest

import rig

MODEL = rig.CASES / "models/tiny-llama"
PROBE = json.loads((MODEL / "expect.json").read_text())["probes"][0]
LONG = json.loads((MODEL / "config.json").read_text())["max_position_embeddings"] - 20
LOST = (1, "loractl: stdout: ")


class Output(unittest.TestCase):
    """What nobody gets is no success."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(rig.Cluster(MODEL))
        cls.cluster.start_group(1)

    def run_into(self, redirection, *arguments):
        """Exit code and stderr of loractl behind a shell's redirection."""
        run = subprocess.run(
            ["bash", "-c", f'"$@" {redirection}', "bash", str(rig.BIN / "loractl"), "--address",
             self.cluster.address, *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False)
        return run.returncode, run.stderr

    def test_a_full_or_closed_stdout_is_an_error(self):
        generate = ["generate", "--model", "base", "--token-ids", "1,2", "--max-tokens", "3"]
        for where in (">/dev/full", ">&-"):
            for command in (["status"], ["--json", "status"], ["adapter", "list"], ["--help"],
                            generate, ["--json", *generate]):
                with self.subTest(where=where, command=command):
                    code, errors = self.run_into(where, *command)
                    self.assertEqual((code, errors[:len(LOST[1])]), LOST)
                    self.assertEqual(len(errors.splitlines()), 1, errors)

    def test_closed_standard_streams_do_not_reach_the_coordinator(self):
        code, _ = self.run_into("<&- >&- 2>&-", "generate", "--model", "base", "--token-ids", "1",
                                "--max-tokens", "3")
        self.assertEqual(code, 1)
        self.assertEqual(self.cluster.generate("base", PROBE["prompt"], 8).tokens,
                         PROBE["greedy"][:8])

    def test_an_answer_that_nobody_can_read_is_not_computed(self):
        batch = self.cluster.folder / "unread.jsonl"
        batch.write_text("".join(json.dumps({"model": "base", "token_ids": [1, 2, i], "n": 8,
                                             "max_tokens": LONG, "ignore_eos": True}) + "\n"
                                 for i in range(4)))
        before = self.ended("client_cancelled")
        code, errors = self.run_into(">/dev/full", "generate", "--batch", batch)
        self.assertEqual((code, errors[:len(LOST[1])]), LOST)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        rig.wait_for("the cancels", lambda: self.ended("client_cancelled") == before + 4)

    def ended(self, outcome):
        return self.cluster.metric("requests_total", tenant_class="default",
                                   operation="completion", outcome=outcome)

    def test_two_prompts_are_refused(self):
        answer = self.cluster.ctl("generate", "--model", "base", "hi", "--token-ids", "1,2")
        self.assertEqual(answer.code, 2)
        self.assertIn("prompt=hi: the prompt is given already, as token-ids=1,2", answer.errors)

    def test_a_request_without_a_model_is_told_the_name(self):
        answer = self.cluster.ctl("generate", "--token-ids", "1,2")
        self.assertEqual(answer.error["reason"], "invalid_argument")
        self.assertIn("model: is required: the base's name, base, or an adapter's", answer.errors)

    def test_a_batch_names_its_lines_and_takes_each_prompt_once(self):
        batch = self.cluster.folder / "lines.jsonl"
        batch.write_text('{"model": "base", "token_ids": [1, 2]}\n\n{"token_ids": [1, 2]}\n')
        answer = self.cluster.ctl("generate", "--batch", batch, "--max-tokens", 2)
        self.assertEqual(answer.code, 1)
        self.assertEqual({line["label"]: "error" in line for line in answer.lines},
                         {"base": False, "line 3": True})
        self.assertIn("loractl: line 3: INVALID_ARGUMENT invalid_argument: model: is required",
                      self.run_into("", "generate", "--batch", batch, "--max-tokens", 2)[1])
        answer = self.cluster.ctl("generate", "--batch", batch, "--token-ids", "1")
        self.assertEqual((answer.code, answer.text), (2, ""))
        self.assertIn("lines.jsonl:1: token-ids=1: the prompt is given already, on the command",
                      answer.errors)
        batch.write_text('{"model": "base"}\n' * 2)
        answer = self.cluster.ctl("generate", "--batch", batch, "--token-ids",
                                  ",".join(map(str, PROBE["prompt"])), "--temperature", 0,
                                  "--max-tokens", 4, "--echo-token-ids")
        self.assertEqual([line["samples"][0]["token_ids"] for line in answer.lines],
                         [PROBE["greedy"][:4]] * 2)

    def test_pages_of_adapters(self):
        names = ["one", "three", "two"]
        for name in names:
            self.assertEqual(self.cluster.register(name, "ok-plain-qv").code, 0)
        page = self.cluster.ctl("adapter", "list", "--page-size", 2).json
        self.assertEqual([a["name"] for a in page["adapters"]], names[:2])
        rest = self.cluster.ctl("adapter", "list", "--page-token", page["next_page_token"]).json
        self.assertEqual([a["name"] for a in rest["adapters"]], names[2:])
        self.assertEqual(rest["next_page_token"], "")
        whole = self.cluster.ctl("adapter", "list").json
        self.assertEqual([a["name"] for a in whole["adapters"]], names)

    def test_services_and_their_methods(self):
        names = self.cluster.ctl("services").json["services"]
        ours = [name for name in names if name.startswith("rootstock.v1.")]
        self.assertLess({f"rootstock.v1.{name}" for name in ("Inference", "Adapters", "Cluster")},
                        set(ours))
        for name in ours:
            self.assertEqual(self.cluster.ctl("health", name).code, 0, name)
        methods = self.cluster.ctl("services", "rootstock.v1.Inference").json["methods"]
        self.assertEqual([m["name"] for m in methods], ["Generate", "Tokenize", "Detokenize"])
        self.assertEqual(methods[0]["response"], "rootstock.v1.GenerateResponse")
        self.assertTrue(methods[0]["server_streaming"])
        self.assertEqual(self.cluster.ctl("services", "no.such").error["code"], "NOT_FOUND")
        self.assertEqual(self.cluster.ctl("health", "no.such").error["code"], "NOT_FOUND")

    def test_minus_one_draws_from_all_tokens(self):
        self.assertEqual(self.cluster.generate("base", [1], 2, "--top-k", "-1").code, 0)


class Groups(unittest.TestCase):
    """What loractl and the health service say of groups that are not there."""

    def test_from_none_to_one_that_drained(self):
        cluster = self.enterContext(rig.Cluster(MODEL))
        self.assertIn("no group is attached: requests wait", self.status(cluster))
        self.assertFalse(cluster.healthy())
        self.assertEqual(self.health(cluster), (1, "NOT_SERVING"))
        self.assertEqual(self.health(cluster, "rootstock.v1.Inference"), (1, "NOT_SERVING"))
        self.assertEqual(self.health(cluster, "rootstock.v1.Adapters"), (0, "SERVING"))
        waiting = cluster.stream("--model", "base", "--token-ids", "1,2", "--max-tokens", "3")
        rig.wait_for("the notice", lambda: "loractl: no group is attached: waiting" in waiting.text())
        cluster.start_group(1)
        self.assertEqual(waiting.wait(), 0)
        self.assertTrue(cluster.healthy())
        self.assertEqual(self.health(cluster), (0, "SERVING"))
        self.assertEqual(cluster.group()["pages"], 4000)
        self.assertEqual(cluster.end_group(), 0)
        rig.wait_for("the end", lambda: cluster.group()["state"] == "drained")
        self.assertIn("no group is ready (g0: drained): requests wait", self.status(cluster))
        self.assertEqual({key: value for key, value in cluster.group().items()
                          if key.startswith("page") and value != 0}, {})
        rig.wait_for("the health service", lambda: not cluster.healthy())
        self.assertEqual(self.health(cluster), (1, "NOT_SERVING"))
        for state in ("forming", "ready", "draining", "broken"):
            self.assertEqual(cluster.metric("group_state", group="g0", state=state), 0)
        cluster.coordinator.kill()
        self.assertEqual(cluster.ctl("health").code, 3)

    def health(self, cluster, *service):
        answer = cluster.ctl("health", *service)
        self.assertEqual(answer.json["service"], service[0] if service else "")
        return answer.code, answer.json["status"]

    def status(self, cluster):
        run = subprocess.run([str(rig.BIN / "loractl"), "--address", cluster.address, "status"],
                             capture_output=True, text=True, timeout=60, check=True)
        return run.stdout


class Coordinators(unittest.TestCase):
    """Two that want the same, and signals."""

    def test_a_data_folder_has_one_coordinator(self):
        cluster = self.enterContext(rig.Cluster(MODEL))
        second = rig.Process([rig.BIN / "lora-coordinator", "--listen", "127.0.0.1:0",
                              "--metrics-port", "0", "--data", cluster.folder / "data",
                              "--model", MODEL], cluster.folder / "second.log")
        self.assertEqual(second.wait(), 1)
        self.assertIn(f"data={cluster.folder / 'data'}: ", second.text())
        self.assertTrue(cluster.coordinator.running)
        self.assertEqual(cluster.register("a", "ok-plain-qv").code, 0)

    def test_a_restart_as_soon_as_the_drain_is_over(self):
        cluster = self.enterContext(rig.Cluster(MODEL))
        cluster.start_group(1)
        self.assertEqual(cluster.register("a", "ok-plain-qv").code, 0)
        first, metrics = cluster.coordinator, cluster.ports["metrics"]
        # A scraper that keeps its connection, which holds up the metrics' server.
        scraper = http.client.HTTPConnection("127.0.0.1", int(metrics))
        self.addCleanup(scraper.close)
        scraper.request("GET", "/metrics")
        scraper.getresponse().read()
        first.send(signal.SIGTERM)
        while not re.search(r" coordinator  drained$", first.text(), re.MULTILINE):
            pass
        cluster.metrics_port = metrics
        cluster.start()
        self.assertEqual(first.wait(1), 0)
        self.assertEqual(cluster.ports["metrics"], metrics)
        cluster.wait_ready()
        self.assertEqual(cluster.generate("a", [1, 2], 2).code, 0)

    def test_a_second_interrupt_ends_a_drain(self):
        # As a shell starts what it puts in the background.
        self.addCleanup(signal.signal, signal.SIGINT,
                        signal.signal(signal.SIGINT, signal.SIG_IGN))
        cluster = self.enterContext(rig.Cluster(MODEL, "--drain-timeout", "600"))
        waiting = cluster.stream("--model", "base", "--token-ids", "1,2")
        rig.wait_for("the queue", lambda: cluster.status()["queued_requests"] == 1)
        cluster.coordinator.send(signal.SIGINT)
        rig.wait_for("the drain", lambda: "draining" in cluster.coordinator.text())
        self.assertTrue(cluster.coordinator.running)
        cluster.coordinator.send(signal.SIGINT)
        self.assertEqual(cluster.coordinator.wait(), -signal.SIGINT)
        self.assertEqual(waiting.wait(), 3)

    def test_the_signal_that_drains_groups_drains_a_coordinator(self):
        cluster = self.enterContext(rig.Cluster(MODEL))
        group = cluster.start_group(1)
        cluster.coordinator.send(signal.SIGUSR1)
        self.assertEqual(cluster.coordinator.wait(), 0)
        self.assertIn("group 'g0' let go: this coordinator ends", cluster.coordinator.text())
        self.assertNotIn(" W ", cluster.coordinator.text().split("draining, at most")[1])
        self.assertTrue(group.running)
        cluster.start()
        cluster.wait_ready()


if __name__ == "__main__":
    unittest.main()
