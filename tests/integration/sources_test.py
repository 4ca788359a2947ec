"""Adapters of clients that share no path with the coordinator."""

import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
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

    def test_other_content_is_a_new_version_when_asked_for(self):
        other = rig.CASES / "adapters/ok-regex-targets"
        self.assertEqual(self.cluster.ctl("adapter", "upload", "twice", GOOD).code, 0)
        taken = self.cluster.ctl("adapter", "upload", "twice", other)
        self.assertEqual((taken.code, taken.error["reason"]), (1, "name_taken"))
        answer = self.cluster.ctl("adapter", "upload", "twice", other, "--new-version")
        self.assertEqual((answer.code, answer.json["version"]), (0, 2), answer.errors)
        self.check_answers("twice", other)
        self.check_answers("twice@1", GOOD)

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


class ObjectStore(unittest.TestCase):
    """Adapters in a bucket of a real S3 server that checks signatures."""

    KEYS = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "SECRETKEY"}

    @classmethod
    def setUpClass(cls):
        cls.cluster = rig.Cluster(MODEL, "--adapter-source", "s3://tunes/shared",
                                  "--adapter-store", "s3://tunes/zoo",
                                  "--object-store", "s3://tunes/content", "--blob-bytes", "1",
                                  adapter_root="")
        cls.bucket = bucket = cls.cluster.folder / "s3/tunes"
        for place, case in (("shared/team/plain", "ok-plain-qv"), ("zoo/lazy", "ok-plain-qv"),
                            ("zoo/sea/tied", "ok-all-linear"), ("zoo/spoilt", "no-nan"),
                            ("private/plain", "ok-plain-qv")):
            shutil.copytree(rig.CASES / "adapters" / case, bucket / place)
        cls.server = rig.Process(
            [pathlib.Path(sys.executable).parent / "rclone", "serve", "s3", "-v", "--config",
             "/dev/null", "--auth-key", "KEY,SECRETKEY", "--addr", "127.0.0.1:0", bucket.parent],
            cls.cluster.folder / "s3.log")
        cls.addClassCleanup(cls.server.kill)
        endpoint = rig.wait_for("the S3 server", lambda: re.search(
            r"\[(http://[^/]+)/\]", cls.server.text()))[1]
        cls.cluster.env = {**cls.KEYS, "AWS_ENDPOINT_URL": endpoint}
        cls.enterClassContext(cls.cluster)
        cls.cluster.start_group(2)

    def check_answers(self, model, case, *flags):
        expect = json.loads((rig.CASES / "adapters" / case / "expect.json").read_text())
        for probe in expect["probes"]:
            answer = self.cluster.generate(model, probe["prompt"], len(probe["greedy"]), *flags)
            self.assertEqual(answer.tokens, probe["greedy"], answer.errors)

    def test_registers_from_an_allowed_bucket_only(self):
        answer = self.cluster.register("plain", "s3://tunes/shared/team/plain")
        self.assertEqual(answer.code, 0, answer.errors)
        self.check_answers("plain", "ok-plain-qv")
        for uri, reason in (("s3://tunes/private/plain", "path_invalid"),
                            ("s3://others/plain", "path_invalid"),
                            ("file:///etc", "path_invalid"),
                            ("s3://tunes/shared/none", "path_invalid")):
            answer = self.cluster.register("elsewhere", uri)
            self.assertEqual((answer.code, answer.error["reason"]), (1, reason), uri)

    def test_a_name_of_the_store_answers_at_its_first_request(self):
        self.check_answers("lazy", "ok-plain-qv")
        names = [a["name"] for a in self.cluster.ctl("adapter", "list").json["adapters"]]
        self.assertIn("lazy", names)
        # Each tenant has a folder of its own.
        self.assertEqual(self.cluster.generate("tied", [1], 1).error["code"], "NOT_FOUND")

    def test_content_lives_in_the_bucket_and_goes_with_its_last_name(self):
        digests = []
        for name, case in (("first", "ok-fp32-file"), ("second", "ok-rslora-r16")):
            answer = self.cluster.ctl("adapter", "upload", name, rig.CASES / "adapters" / case)
            self.assertEqual(answer.code, 0, answer.errors)
            digests.append(answer.json["digest"])
        # The disk has room for one; groups get the other out of the bucket.
        stored = [file.name for file in (self.cluster.folder / "data/blobs").glob("[0-9a-f]*")]
        self.assertEqual(stored, digests[1:])
        listed = subprocess.run([rig.BIN / "loractl", "--address", self.cluster.address, "adapter",
                                 "list"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(listed, r"(?m)^first@1 +object ")
        self.assertRegex(listed, r"(?m)^second@1 +coordinator ")
        def stored():
            return self.cluster.metric("adapters_resident", group="", tier="object")
        before = stored()
        self.check_answers("first", "ok-fp32-file")
        self.check_answers("second", "ok-rslora-r16")
        self.assertEqual(self.cluster.ctl("adapter", "rm", "first").code, 0)
        rig.wait_for("the removal", lambda: not (self.bucket / "content/blobs" /
                                                 digests[0]).exists())
        self.assertEqual(stored(), before - 1)
        self.check_answers("second", "ok-rslora-r16")

    def test_a_drain_waits_for_content_that_still_comes_out_of_the_store(self):
        for name, case in (("slow", "ok-patterns"), ("next", "ok-exclude")):
            answer = self.cluster.ctl("adapter", "upload", name, rig.CASES / "adapters" / case)
            self.assertEqual(answer.code, 0, answer.errors)
        digest = self.cluster.ctl("adapter", "show", "slow").json["digest"]
        self.assertFalse((self.cluster.folder / "data/blobs" / digest).exists())
        probe = json.loads((rig.CASES / "adapters/ok-patterns/expect.json").read_text())["probes"][0]
        self.server.send(signal.SIGSTOP)
        try:
            waiting = rig.Process(
                [rig.BIN / "loractl", "--address", self.cluster.address, "--json", "generate",
                 "--model", "slow", "--token-ids", ",".join(map(str, probe["prompt"])),
                 "--max-tokens", len(probe["greedy"]), "--temperature", "0"],
                self.cluster.folder / "waiting.log", errors=self.cluster.folder / "waiting.errors")
            rig.wait_for("the request", lambda: self.cluster.status()["queued_requests"] == 1)
            self.cluster.coordinator.send(signal.SIGTERM)
            rig.wait_for("the drain", lambda: self.cluster.status()["draining"])
        finally:
            self.server.send(signal.SIGCONT)
        self.assertEqual(waiting.wait(), 0, waiting.text())
        self.assertEqual(waiting.answers()[0]["samples"][0]["token_ids"], probe["greedy"])
        self.assertEqual(self.cluster.coordinator.wait(), 0)
        self.cluster.start()
        self.cluster.wait_ready()

    def test_what_the_store_lacks_or_spoils_is_told(self):
        self.assertEqual(self.cluster.generate("nobody", [1], 1).error["reason"], "unknown_model")
        spoilt = self.cluster.generate("spoilt", [1], 1)
        self.assertEqual(spoilt.error["reason"], "nonfinite", spoilt.errors)

    def test_an_upload_that_is_not_wanted_is_given_up(self):
        taken = self.cluster.ctl("adapter", "upload", "base", rig.CASES / "adapters/ok-plain-qv")
        self.assertEqual((taken.code, taken.error["reason"]), (1, "name_taken"))
        uploads = self.cluster.folder / "data/uploads"
        [upload] = [file.name for file in uploads.iterdir()]
        self.assertIn(f"adapter abort-upload {upload} gives it up", taken.errors)
        self.assertEqual(self.cluster.ctl("adapter", "abort-upload", upload).code, 0)
        self.assertEqual(list(uploads.iterdir()), [])

    def test_a_store_that_stands_still_holds_up_nobody_else(self):
        self.check_answers("lazy", "ok-plain-qv")
        self.server.send(signal.SIGSTOP)
        try:
            waiting = self.cluster.stream("--model", "later", "--token-ids", "1", "--max-tokens",
                                          "2")
            self.check_answers("lazy", "ok-plain-qv")
            self.assertTrue(waiting.running)
        finally:
            self.server.send(signal.SIGCONT)
        self.assertEqual(waiting.wait(), 1)
        self.assertIn("unknown_model", waiting.text())


class StoreThatStandsStill(unittest.TestCase):
    """A server that takes connections and says nothing: each fetch waits 40 seconds for it."""

    def test_registrations_by_uri_hold_up_no_upload(self):
        server = self.enterContext(socket.create_server(("127.0.0.1", 0), backlog=64))
        cluster = rig.Cluster(MODEL, "--adapter-source", "s3://tunes/shared", adapter_root="")
        cluster.env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}"}
        self.enterContext(cluster)
        for i, name in enumerate([f"apart{i}" for i in range(9)] + 2 * ["again"]):
            call = rig.Process([rig.BIN / "loractl", "--address", cluster.address, "adapter", "add",
                                name, "s3://tunes/shared/plain"], cluster.folder / f"add{i}.log")
            self.addCleanup(call.kill)
        def fetching():
            return cluster.metric("adapters", state="staged")
        rig.wait_for("the fetches", lambda: fetching() == 11)
        third = cluster.register("again", "s3://tunes/shared/plain")
        self.assertEqual((third.code, third.error["reason"]), (1, "queue_full"), third.errors)
        answer = cluster.ctl("--timeout", "20", "adapter", "upload", "mine", GOOD)
        self.assertEqual(answer.code, 0, answer.errors)
        self.assertEqual(fetching(), 11)


class StoreThatIsAway(unittest.TestCase):
    """Directories of another machine that are not mounted for a while."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = rig.Cluster(MODEL, adapter_root="")
        cls.stores = cls.cluster.folder / "stores"
        shutil.copytree(rig.CASES / "adapters/ok-plain-qv", cls.stores / "zoo/lazy")
        cls.cluster.flags += ["--adapter-store", f"file://{cls.stores}/zoo", "--object-store",
                              f"file://{cls.stores}/content", "--blob-bytes", "1"]
        cls.enterClassContext(cls.cluster)
        cls.cluster.start_group(1)

    def test_it_is_no_unknown_model_and_not_remembered(self):
        for name, case in (("far", "ok-fp32-file"), ("near", "ok-rslora-r16")):  # room for one
            answer = self.cluster.ctl("adapter", "upload", name, rig.CASES / "adapters" / case)
            self.assertEqual(answer.code, 0, answer.errors)
        away = self.stores.rename(self.stores.with_name("away"))
        for model in ("lazy", "far"):
            answer = self.cluster.generate(model, [1], 1)
            self.assertEqual(answer.error["code"], "UNAVAILABLE", answer.errors)
            self.assertNotIn(str(self.stores), answer.errors)
            self.assertIn("the store can't be reached", answer.errors)
        self.assertEqual(self.cluster.generate("near", [1], 1).code, 0)
        self.assertIn(f"uri=file://{self.stores}/zoo", self.cluster.coordinator.text())
        self.assertFalse(self.stores.exists())
        away.rename(self.stores)
        for model in ("lazy", "far"):
            answer = self.cluster.generate(model, [1], 1)
            self.assertEqual(answer.code, 0, answer.errors)
        self.assertEqual(self.cluster.generate("nobody", [1], 1).error["reason"], "unknown_model")

    def test_what_the_disk_has_spoilt_is_taken_anew(self):
        answer = self.cluster.ctl("adapter", "upload", "spoilt",
                                  rig.CASES / "adapters/ok-regex-targets")
        self.assertEqual(answer.code, 0, answer.errors)
        blob = self.cluster.folder / "data/blobs" / answer.json["digest"]
        content = bytearray(blob.read_bytes())
        content[len(content) // 2] ^= 1
        blob.write_bytes(content)
        answer = self.cluster.generate("spoilt", [1], 1)
        self.assertEqual(answer.code, 0, answer.errors)
        self.assertIn("is spoilt on disk; it is fetched again", self.cluster.coordinator.text())

    def test_what_the_disk_does_not_give_back_is_taken_anew(self):
        case = rig.CASES / "adapters/ok-key-order"
        answer = self.cluster.ctl("adapter", "upload", "unreadable", case)
        self.assertEqual(answer.code, 0, answer.errors)
        blob = self.cluster.folder / "data/blobs" / answer.json["digest"]
        blob.unlink()
        blob.symlink_to("/proc/self/mem")  # opens; reads end with EIO
        probe = json.loads((case / "expect.json").read_text())["probes"][0]
        answer = self.cluster.generate("unreadable", probe["prompt"], len(probe["greedy"]))
        self.assertEqual(answer.tokens, probe["greedy"], answer.errors)
        self.assertFalse(blob.is_symlink())


if __name__ == "__main__":
    unittest.main()
