"""Adapters' content on disks that are full: real ones, small, in a mount namespace."""

import contextlib
import json
import signal
import subprocess
import unittest

import namespaces
import rig

MODEL = rig.CASES / "models/tiny-llama"
BEFORE, LATER = "ok-plain-qv", "ok-all-linear"
DISK_BYTES = 2 << 20
PAGE = 4096


def setUpModule():
    namespaces.enter("--mount")


@contextlib.contextmanager
def full(disk, left=PAGE):
    """No more bytes are left of it meanwhile."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as out:
        with contextlib.suppress(OSError):
            while True:
                out.write(bytes(PAGE))
        out.truncate(out.tell() - left)
    try:
        yield
    finally:
        ballast.unlink()


class Disks(unittest.TestCase):
    """A cluster some of whose folders are small disks."""

    def serve(self, cluster, *disks):
        self.cluster = cluster
        for disk in disks:
            disk.mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", disk],
                           check=True)
            self.addCleanup(subprocess.run, ["umount", "--lazy", disk], check=True)
        self.enterContext(cluster)
        cluster.start_group(1)
        self.assertEqual(cluster.register(BEFORE, rig.CASES / "adapters" / BEFORE).code, 0)

    def check_answers(self, name, case):
        expect = json.loads((rig.CASES / "adapters" / case / "expect.json").read_text())
        probe = expect["probes"][0]
        answer = self.cluster.generate(name, probe["prompt"], len(probe["greedy"]))
        self.assertEqual(answer.tokens, probe["greedy"], answer.errors)

    def check_reason(self, answer, code):
        self.assertEqual((answer.code, answer.error["code"], answer.error["reason"]),
                         (1, code, "no_space"), answer.errors)


class FullDisk(Disks):
    def setUp(self):
        cluster = rig.Cluster(MODEL)
        data = cluster.folder / "data"
        self.blobs, self.uploads = data / "blobs", data / "uploads"
        self.node = cluster.folder / "g0.cache"
        self.serve(cluster, self.blobs, self.uploads, self.node)

    def check_refused(self, answer, name):
        """Told why, and nothing but this adapter has suffered."""
        self.check_reason(answer, "RESOURCE_EXHAUSTED")
        self.assertIn("No space left on device", answer.errors)
        self.assertEqual(self.cluster.generate(name, [1], 1).error["code"], "NOT_FOUND")
        self.check_answers(BEFORE, BEFORE)
        self.assertEqual(self.cluster.generate("base", [1], 1).code, 0)
        kept = {file.name for file in self.blobs.iterdir()} - {"ballast"}
        self.assertEqual(len(kept), 1, kept)

    def test_a_registration(self):
        case = rig.CASES / "adapters" / LATER
        with full(self.blobs):
            self.check_refused(self.cluster.register("later", case), "later")
        self.assertEqual(self.cluster.register("later", case).code, 0)
        self.check_answers("later", LATER)

    def test_a_node(self):
        self.check_answers(BEFORE, BEFORE)
        case = rig.CASES / "adapters" / LATER
        self.assertEqual(self.cluster.register("later", case).code, 0)
        with full(self.node):
            refused = self.cluster.generate("later", [1], 1)
            self.check_reason(refused, "UNAVAILABLE")
            self.assertRegex(refused.errors, "adapter=later: could not be loaded: .* disk is full")
            self.check_answers(BEFORE, BEFORE)
            self.assertEqual(self.cluster.generate("base", [1], 1).code, 0)
        self.assertEqual(self.cluster.metric("adapter_loads_total", source="coordinator",
                                             result="no_space"), 1)
        self.check_answers("later", LATER)

    def test_an_upload(self):
        case = rig.CASES / "adapters" / LATER
        with full(self.uploads):
            self.check_refused(self.cluster.ctl("adapter", "upload", "later", case), "later")
            self.assertEqual(self.cluster.metric("adapter_upload_total", result="error"), 1)
        with full(self.blobs):  # all came; there is no room for the content
            answer = self.cluster.ctl("adapter", "upload", "later", case)
            self.check_refused(answer, "later")
            self.assertIn("what came stays for a day", answer.errors)
        answer = self.cluster.ctl("adapter", "upload", "later", case)
        self.assertEqual(answer.code, 0, answer.errors)
        self.assertRegex(answer.errors, r"going on with an upload that has (\d+) of \1 bytes")
        self.check_answers("later", LATER)
        self.assertEqual(list(self.uploads.iterdir()), [])
        self.assertEqual(self.cluster.metric("adapter_upload_total", result="ok"), 1)


class FullObjectStore(Disks):
    def setUp(self):
        cluster = rig.Cluster(MODEL)
        self.objects, self.blobs = cluster.folder / "objects", cluster.folder / "data/blobs"
        cluster.flags += ["--object-store", f"file://{self.objects}", "--blob-bytes", "1"]
        self.serve(cluster, self.objects, self.blobs)

    def test_a_registration(self):
        case = rig.CASES / "adapters" / LATER
        with full(self.objects):
            refused = self.cluster.register("later", case)
            self.check_reason(refused, "RESOURCE_EXHAUSTED")
            self.assertIn("the store is full", refused.errors)
        # The client hears that, the log where.
        self.assertNotIn("objects", refused.errors)
        self.assertRegex(self.cluster.coordinator.text(),
                         f"was not stored: uri=file://{self.objects}/blobs/.* No space left")
        self.assertEqual(self.cluster.register("later", case).code, 0)
        self.check_answers("later", LATER)

    def test_the_coordinators_disk_when_it_fetches_for_a_group(self):
        self.assertEqual(self.cluster.register("later", rig.CASES / "adapters" / LATER).code, 0)
        with full(self.blobs):  # which holds the last one alone
            refused = self.cluster.generate(BEFORE, [1], 1)
            self.check_reason(refused, "UNAVAILABLE")
            self.assertRegex(refused.errors, "could not be loaded: .* No space left on device")
        self.assertEqual(self.cluster.metric("adapter_loads_total", source="coordinator",
                                             result="no_space"), 1)
        self.check_answers(BEFORE, BEFORE)


class FullRegistryDisk(Disks):
    def setUp(self):
        cluster = rig.Cluster(MODEL)
        self.data = cluster.folder / "data"
        self.serve(cluster, self.data)

    def test_a_start(self):
        case = rig.CASES / "adapters" / LATER
        for number, end in enumerate((signal.SIGTERM, signal.SIGKILL)):
            self.cluster.coordinator.send(end)
            self.cluster.coordinator.wait()
            with full(self.data, left=0):
                self.cluster.start()
                self.cluster.wait_ready()
                self.check_answers(BEFORE, BEFORE)
                self.check_reason(self.cluster.register(f"later{number}", case),
                                  "RESOURCE_EXHAUSTED")
                # As often as need be: what the start wrote is what the reserve lacks now.
                self.cluster.coordinator.send(end)
                self.cluster.coordinator.wait()
                self.cluster.start()
            self.cluster.wait_ready()
            self.assertEqual(self.cluster.register(f"later{number}", case).code, 0)
            self.check_answers(f"later{number}", LATER)


if __name__ == "__main__":
    unittest.main()
