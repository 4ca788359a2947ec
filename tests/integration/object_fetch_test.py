"""Groups that get adapter content out of the object store themselves, and go on when they can't."""

import json
import pathlib
import re
import sys
import unittest

import rig

MODEL = rig.CASES / "models/tiny-llama"


class Objects:
    """The cases. Of self.uri, whose objects lie in self.objects; the coordinator's disk holds one
    content, the last that was added or read."""

    env = {}

    def start(self):
        self.enterContext(self.cluster)
        self.cluster.start_group(2, "--object-store", self.uri, env=self.env)

    def upload(self, name, case):
        answer = self.cluster.ctl("adapter", "upload", name, rig.CASES / "adapters" / case)
        self.assertEqual(answer.code, 0, answer.errors)
        return answer.json["digest"]

    def check_answers(self, model, case):
        expect = json.loads((rig.CASES / "adapters" / case / "expect.json").read_text())
        for probe in expect["probes"]:
            answer = self.cluster.generate(model, probe["prompt"], len(probe["greedy"]))
            self.assertEqual(answer.tokens, probe["greedy"], answer.errors)

    def on_coordinators_disk(self):
        return [file.name for file in (self.cluster.folder / "data/blobs").glob("[0-9a-f]*")]

    def loads(self):
        return {source: int(self.cluster.metric("adapter_loads_total", source=source, result="ok"))
                for source in ("object", "coordinator")}

    def test_content_comes_past_the_coordinator(self):
        first = self.upload("first", "ok-fp32-file")
        second = self.upload("second", "ok-rslora-r16")
        self.assertEqual(self.on_coordinators_disk(), [second])
        self.check_answers("first", "ok-fp32-file")
        # Had the coordinator read it, it would have it in second's place.
        self.assertEqual(self.on_coordinators_disk(), [second])
        self.assertEqual(self.loads(), {"object": 1, "coordinator": 0})
        self.assertTrue((self.cluster.folder / "g0.cache/adapters" / first).exists())

    def test_what_the_store_lacks_or_spoils_comes_from_the_coordinator(self):
        for name, case, spoil in (
                ("gone", "ok-fp32-file", pathlib.Path.unlink),
                ("spoilt", "ok-rslora-r16", lambda blob: blob.write_bytes(b"spoilt"))):
            spoil(self.objects / "blobs" / self.upload(name, case))
            self.check_answers(name, case)
        self.assertEqual(self.loads(), {"object": 0, "coordinator": 2})
        self.assertIn("comes from elsewhere", self.cluster.groups["g0"].text())


class Directory(Objects, unittest.TestCase):
    """file://, of a file system that coordinator and groups share."""

    def setUp(self):
        self.cluster = rig.Cluster(MODEL, adapter_root="")
        self.objects = self.cluster.folder / "objects"
        self.objects.mkdir()
        self.uri = f"file://{self.objects}"
        self.cluster.flags += ["--object-store", self.uri, "--blob-bytes", "1"]
        self.start()


    def test_what_a_nodes_disk_spoils_comes_again(self):
        pages = 16
        self.cluster.start_group(2, "--object-store", self.uri, "--host-cache-bytes", "0",
                                 "--page-tokens", "16", "--num-pages", str(pages))
        digest = self.upload("plain", "ok-plain-qv")
        self.check_answers("plain", "ok-plain-qv")
        # An answer whose KV takes every page: the adapter is on the disk alone.
        self.assertEqual(self.cluster.generate("base", [1], 16 * (pages - 1)).code, 0)
        self.assertEqual(self.cluster.group()["resident_adapters"], [])
        cached = self.cluster.folder / "g0.cache/adapters" / digest
        content = cached.read_bytes()
        cached.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        self.check_answers("plain", "ok-plain-qv")
        self.assertEqual(self.loads(), {"object": 2, "coordinator": 0})
        self.assertEqual(cached.read_bytes(), content)


class Bucket(Objects, unittest.TestCase):
    """s3://, of a real server that checks signatures."""

    uri = "s3://tunes/content"

    def setUp(self):
        self.cluster = rig.Cluster(MODEL, "--object-store", self.uri, "--blob-bytes", "1",
                                   adapter_root="")
        self.objects = self.cluster.folder / "s3/tunes/content"
        self.objects.mkdir(parents=True)
        server = rig.Process(
            [pathlib.Path(sys.executable).parent / "rclone", "serve", "s3", "-v", "--config",
             "/dev/null", "--auth-key", "KEY,SECRETKEY", "--addr", "127.0.0.1:0",
             self.cluster.folder / "s3"], self.cluster.folder / "s3.log")
        self.addCleanup(server.kill)
        endpoint = rig.wait_for("the S3 server", lambda: re.search(
            r"\[(http://[^/]+)/\]", server.text()))[1]
        self.env = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "SECRETKEY",
                    "AWS_ENDPOINT_URL": endpoint}
        self.cluster.env = self.env
        self.start()

    def test_a_store_that_refuses_is_done_without(self):
        self.cluster.start_group(2, "--object-store", self.uri,
                                 env={**self.env, "AWS_SECRET_ACCESS_KEY": "ANOTHERKEY"})
        self.upload("plain", "ok-plain-qv")
        self.check_answers("plain", "ok-plain-qv")
        self.assertEqual(self.loads(), {"object": 0, "coordinator": 1})
        self.assertIn("HTTP 403", self.cluster.groups["g0"].text())


if __name__ == "__main__":
    unittest.main()
