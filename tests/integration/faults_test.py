"""Losses, restarts and drains of real processes."""

import json
import signal
import time
import unittest

import rig

MODEL = rig.CASES / "models/tiny-llama"
PROBE = json.loads((MODEL / "expect.json").read_text())["probes"][0]
ADAPTERS = ["ok-plain-qv", "ok-all-linear", "ok-patterns"]
LONG = json.loads((MODEL / "config.json").read_text())["max_position_embeddings"] - 20


class Work(unittest.TestCase):
    """Requests that keep groups busy."""

    def setUp(self):
        self.cluster = self.enterContext(rig.Cluster(MODEL, "--drain-timeout", "120"))

    def register(self):
        for name in ADAPTERS:
            self.assertEqual(self.cluster.register(name, name).code, 0)

    def ask_all(self):
        """Every adapter's tokens, which also makes them resident."""
        return {name: self.cluster.generate(name, PROBE["prompt"], 24).tokens
                for name in ["base", *ADAPTERS]}

    def work(self, count=24):
        """Requests that keep a group busy for a while."""
        return {f"{name}#{i}": {"model": name, "token_ids": [*PROBE["prompt"][:8], i],
                                "max_tokens": LONG}
                for i in range(count) for name in ["base", *ADAPTERS]}

    def start_work(self, requests):
        file = self.cluster.folder / "work.jsonl"
        file.write_text("".join(json.dumps({"temperature": 0, "label": label, **request}) + "\n"
                                for label, request in requests.items()))
        return rig.Process([rig.BIN / "loractl", "--address", self.cluster.address, "--json",
                            "generate", "--batch", file], self.cluster.folder / "work.log",
                           errors=self.cluster.folder / "work.errors")


class Faults(Work):
    def wait_steps(self, more):
        first = int(self.cluster.group()["steps"])
        rig.wait_for("steps", lambda: int(self.cluster.group()["steps"]) >= first + more)

    def ended(self, outcome):
        return self.cluster.metric("requests_total", tenant_class="default",
                                   operation="completion", outcome=outcome)

    def accepted(self):
        status = self.cluster.status()
        return status["queued_requests"] + status["running_requests"] + (self.ended("ok") or 0)

    def all_pages_free(self):
        group = self.cluster.group()
        return group["pages_kv"] == 0 and self.cluster.status()["running_requests"] == 0

    def test_a_client_that_leaves_frees_its_pages(self):
        self.cluster.start_group(1)
        for end in (signal.SIGINT, signal.SIGKILL):
            work = self.start_work(self.work(200))  # more than is done before it is seen
            rig.wait_for("work", lambda: self.cluster.group()["pages_kv"] > 0)
            work.send(end)
            work.wait()
            rig.wait_for("free pages", self.all_pages_free, 20)
        rig.wait_for("the count", lambda: self.cluster.metric(
            "requests_total", tenant_class="default", operation="completion",
            outcome="client_cancelled"))
        self.assertEqual(self.cluster.generate("base", PROBE["prompt"], 10).tokens,
                         PROBE["greedy"][:10])

    def test_the_coordinator_is_killed_and_comes_back(self):
        group = self.cluster.start_group(2)
        self.register()
        before = self.ask_all()
        resident = sorted(self.cluster.group()["resident_adapters"])
        self.assertEqual(len(resident), len(ADAPTERS))
        incarnation = int(self.cluster.status()["incarnation"])
        for _ in range(2):
            self.cluster.coordinator.kill()
            self.cluster.start()
            self.cluster.wait_ready()
            self.assertEqual(sorted(self.cluster.group()["resident_adapters"]), resident)
            self.assertEqual(self.ask_all(), before)
        self.assertEqual(int(self.cluster.status()["incarnation"]), incarnation + 2)
        self.assertTrue(group.running)
        self.assertEqual(group.text().count("ready: tp_rank 0"), 1, "weights were loaded again")
        self.assertEqual(self.cluster.metric("adapter_loads_total", source="coordinator",
                                             result="ok") or 0, 0)

    def test_a_coordinator_killed_at_work(self):
        self.cluster.start_group(1)
        self.register()
        before = self.ask_all()
        work = self.start_work(self.work())
        self.wait_steps(10)
        self.cluster.coordinator.kill()
        self.assertEqual(work.wait(), 3)
        self.cluster.start()
        self.cluster.wait_ready()
        rig.wait_for("free pages", self.all_pages_free, 20)
        self.assertEqual(self.ask_all(), before)

    def test_a_group_lost_at_work_is_replayed(self):
        self.cluster.start_group(2)
        self.register()
        requests = self.work(40)  # several waves: there is work left when the group goes
        calm = self.cluster.batch(requests)
        epoch = self.cluster.group()["epoch"]
        work = self.start_work(requests)
        rig.wait_for("a full batch", lambda: self.cluster.status()["running_requests"] >= 32)
        self.cluster.groups["g0"].kill()
        rig.wait_for("the loss", lambda: (self.cluster.group() or {}).get("state") != "ready")
        self.cluster.start_group(2)
        self.assertNotEqual(self.cluster.group()["epoch"], epoch)
        self.assertEqual(work.wait(180), 0, work.text()[-2000:])
        answers = {line["label"]: line for line in work.answers()}
        for label, answer in calm.items():
            self.assertEqual(answers[label]["samples"][0]["token_ids"],
                             answer["samples"][0]["token_ids"], label)
        self.assertGreater(self.cluster.metric("replays_total", reason="group_lost"), 0)

    def test_one_rank_lost_ends_its_group(self):
        group = self.cluster.start_group(2)
        ranks = group.children()
        self.assertEqual(len(ranks), 2)
        rig.os.kill(ranks[1], signal.SIGKILL)
        self.assertNotEqual(group.wait(), 0)
        rig.wait_for("the loss", lambda: (self.cluster.group() or {}).get("state") != "ready")
        self.cluster.start_group(1)
        self.assertEqual(self.cluster.generate("base", PROBE["prompt"], 10).tokens,
                         PROBE["greedy"][:10])

    def test_a_rank_that_stays_stopped_ends_its_group(self):
        """Whoever it is, busy or idle: the others end the group, it too, and requests go on."""
        self.register()
        self.cluster.start_group(1, name="other")
        requests = self.work(3)
        calm = self.cluster.batch(requests)
        self.assertEqual(self.cluster.end_group("other"), 0)
        for stopped, busy in ((1, True), (0, False)):
            with self.subTest(stopped=stopped, busy=busy):
                group = self.cluster.start_group(2)
                ranks = group.children()
                work = self.start_work(requests) if busy else None
                if busy:
                    self.wait_steps(2)
                rig.os.kill(ranks[stopped], signal.SIGSTOP)
                start = time.monotonic()
                self.assertNotEqual(group.wait(30), 0)
                self.assertGreater(time.monotonic() - start, 2)
                self.assertIn(f"group lost: tp_rank {stopped} is stopped", group.text())
                if work is None:
                    continue
                self.cluster.start_group(1, name="other")
                self.assertEqual(work.wait(180), 0, work.text()[-2000:])
                answers = {line["label"]: line for line in work.answers()}
                for label, answer in calm.items():
                    self.assertEqual(answers[label]["samples"][0]["token_ids"],
                                     answer["samples"][0]["token_ids"], label)

    def test_a_stopped_rank_without_peers_is_lost(self):
        """Within 5 s on a machine that does nothing else; its requests go on elsewhere."""
        group = self.cluster.start_group(1)
        requests = self.work(3)
        self.register()
        calm = self.cluster.batch(requests)
        work = self.start_work(requests)
        self.wait_steps(2)
        rig.os.kill(group.children()[0], signal.SIGSTOP)
        rig.wait_for("the loss", lambda: (self.cluster.group() or {}).get("state") != "ready", 8)
        self.cluster.start_group(1, name="other")
        self.assertEqual(work.wait(180), 0, work.text()[-2000:])
        answers = {line["label"]: line for line in work.answers()}
        for label, answer in calm.items():
            self.assertEqual(answers[label]["samples"][0]["token_ids"],
                             answer["samples"][0]["token_ids"], label)

    def test_a_rank_that_is_stopped_for_a_moment_goes_on(self):
        group = self.cluster.start_group(2)
        for rank in group.children():
            rig.os.kill(rank, signal.SIGSTOP)
            rig.os.kill(rank, signal.SIGCONT)
        self.assertEqual(self.cluster.generate("base", PROBE["prompt"], 10).tokens,
                         PROBE["greedy"][:10])
        self.assertTrue(group.running)

    def test_a_second_run_under_a_groups_name_is_refused(self):
        first = self.cluster.start_group(1)
        epoch = self.cluster.group()["epoch"]
        second = self.cluster.start_group(1, name="second", group="g0", wait=False)
        self.assertNotEqual(second.wait(), 0)
        self.assertRegex(second.text(), r"group=g0: already attached from \S+ pid \d+")
        self.assertTrue(first.running)
        self.assertEqual(self.cluster.group()["epoch"], epoch)
        self.assertEqual(self.cluster.generate("base", PROBE["prompt"], 10).tokens,
                         PROBE["greedy"][:10])
        # Once the first one is gone, its name is free.
        self.cluster.groups.pop("second")
        self.assertEqual(self.cluster.end_group(), 0)
        self.cluster.start_group(1)
        self.assertEqual(self.cluster.metric("group_reforms_total", group="g0", cause="operator"), 1)

    def test_of_two_runs_that_start_under_one_name_one_attaches(self):
        runs = [self.cluster.start_group(1, name=name, group="g0", wait=False)
                for name in ("one", "other")]
        rig.wait_for("the refusal", lambda: not all(run.running for run in runs))
        kept, refused = sorted(runs, key=lambda run: not run.running)
        self.assertNotEqual(refused.wait(), 0)
        self.assertRegex(refused.text(), r"group=g0: already (forming|attached) from \S+ pid \d+")
        group = rig.wait_for("the group", lambda: (
            lambda g: g["state"] == "ready" and g)(self.cluster.group()))
        self.assertTrue(kept.running)
        self.assertEqual(int(group["epoch"]), 1)

    def test_requests_wait_for_a_late_group(self):
        work = self.start_work({"late": {"model": "base", "token_ids": PROBE["prompt"],
                                         "max_tokens": len(PROBE["greedy"])}})
        rig.wait_for("the queue", lambda: self.cluster.status()["queued_requests"] == 1)
        self.cluster.start_group(1)
        self.assertEqual(work.wait(), 0)
        self.assertEqual(work.answers()[0]["samples"][0]["token_ids"], PROBE["greedy"])

    def test_a_worker_waits_for_its_coordinator(self):
        self.cluster.coordinator.kill()
        group = self.cluster.start_group(1, wait=False)
        rig.wait_for("the message", lambda: self.cluster.address in group.text())
        self.assertTrue(group.running)
        self.cluster.start()
        self.cluster.wait_ready()

    def test_deadlines(self):
        answer = self.cluster.ctl("--timeout", "0.5", "generate", "--model", "base",
                                  "--token-ids", "1,2")
        self.assertEqual(answer.error["code"], "DEADLINE_EXCEEDED")
        rig.wait_for("an empty queue", lambda: self.cluster.status()["queued_requests"] == 0)
        self.assertEqual(self.ended("deadline_exceeded"), 1)
        self.cluster.start_group(1)
        answer = self.cluster.ctl("--timeout", "0.5", "generate", "--model", "base",
                                  "--token-ids", "1,2", "--ignore-eos", "--n", "128")
        self.assertEqual(answer.error["code"], "DEADLINE_EXCEEDED")
        rig.wait_for("free pages", self.all_pages_free, 20)
        # However the end of the call was heard first: by our timer or as gRPC's cancel.
        self.assertEqual(self.ended("deadline_exceeded"), 2)
        self.assertEqual(self.ended("client_cancelled"), 0)

    def test_sigterm_drains(self):
        self.cluster.start_group(1)
        self.register()
        requests = self.work()
        work = self.start_work(requests)
        rig.wait_for("all of it accepted", lambda: self.accepted() == len(requests))
        self.cluster.coordinator.send(signal.SIGTERM)
        refused = rig.wait_for("the refusal", lambda: (
            lambda a: a.code != 0 and a)(self.cluster.generate("base", [1], 1)))
        self.assertEqual(refused.error["code"], "UNAVAILABLE")
        self.assertEqual(work.wait(), 0, work.text()[-2000:])
        self.assertEqual(self.cluster.coordinator.wait(), 0)
        self.assertIn("drained", self.cluster.coordinator.text())
        self.cluster.start()  # and its group finds the next one
        self.cluster.wait_ready()

    def test_streams_that_run_at_the_drains_deadline_end_as_draining(self):
        self.cluster = self.enterContext(rig.Cluster(MODEL, "--drain-timeout", "0"))
        self.cluster.start_group(1)
        self.register()
        requests = self.work()
        work = self.start_work(requests)
        self.wait_steps(5)
        rig.wait_for("all of it accepted", lambda: self.accepted() == len(requests))
        self.cluster.coordinator.send(signal.SIGTERM)
        self.assertNotEqual(work.wait(), 0)
        self.assertEqual(self.cluster.coordinator.wait(), 0)
        errors = [line["error"] for line in work.answers() if "error" in line]
        self.assertTrue(errors)
        for error in errors:
            self.assertEqual((error["code"], error["reason"]), ("UNAVAILABLE", "draining"), error)

    def test_the_drain_rpc_and_sigusr1_end_a_group(self):
        for how in ("rpc", "signal"):
            group = self.cluster.start_group(2, name=how)
            self.register()
            requests = self.work(2)
            work = self.start_work(requests)
            rig.wait_for("the work", lambda: (
                self.cluster.status()["running_requests"] == len(requests)))
            if how == "rpc":
                said = self.cluster.ctl("drain", how)
                self.assertEqual((said.code, said.json), (0, {}))
            else:
                group.send(signal.SIGUSR1)
            self.assertEqual(group.wait(), 0, group.text())
            self.assertEqual(work.wait(), 0, work.text()[-2000:])  # what ran was finished
        self.assertEqual(self.cluster.ctl("drain", "none").error["code"], "NOT_FOUND")
        self.assertTrue(self.cluster.coordinator.running)

    def test_lost_or_spoilt_content_fails_its_own_requests_only(self):
        self.register()
        blobs = self.cluster.folder / "data/blobs"
        file = {a["name"]: next(blobs.rglob(f"*{a['digest']}*"))
                for a in self.cluster.ctl("adapter", "list").json["adapters"]}
        lost, spoilt, good = ADAPTERS
        file[lost].unlink()
        content = bytearray(file[spoilt].read_bytes())
        content[-1] ^= 1
        file[spoilt].chmod(0o600)
        file[spoilt].write_bytes(content)
        self.cluster.start_group(2)
        expect = json.loads((rig.CASES / "adapters" / good / "expect.json").read_text())
        probe = expect["probes"][0]
        requests = {name: {"model": name, "token_ids": probe["prompt"],
                           "max_tokens": len(probe["greedy"])} for name in ["base", *ADAPTERS]}
        for _ in range(2):  # and again: neither name has become unusable for good
            answers = self.cluster.batch(requests)
            for name in (lost, spoilt):
                self.assertIn(f"adapter={name}: could not be loaded",
                              answers[name].get("error", {}).get("message", ""))
            self.assertEqual(answers[good]["samples"][0]["token_ids"], probe["greedy"])
            self.assertNotIn("error", answers["base"])
        for name in (lost, spoilt):  # registered anew it is whole again
            self.cluster.ctl("adapter", "rm", name)
            self.assertEqual(self.cluster.register(name, name).code, 0)
            self.assertEqual(self.cluster.generate(name, [1], 1).code, 0)

    def test_unregistering_frees_pages_at_once(self):
        self.cluster.start_group(1)
        self.register()
        self.ask_all()
        for name in ADAPTERS:
            self.assertGreater(int(self.cluster.ctl("adapter", "rm", name).json["freed_bytes"]), 0)
        rig.wait_for("free pages", lambda: self.cluster.group()["pages_adapter"] == 0, 20)
        self.assertEqual(self.cluster.generate(ADAPTERS[0], [1], 1).error["code"], "NOT_FOUND")


if __name__ == "__main__":
    unittest.main()
