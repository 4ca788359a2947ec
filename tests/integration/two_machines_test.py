"""A coordinator and a group of workers on machines of their own, which share no path: network and
mount namespaces with a cable between them."""

import json
import shutil
import tempfile
import unittest
import pathlib
import subprocess

import namespaces
import rig

MODEL = rig.CASES / "models/tiny-llama"
ADAPTERS = ["ok-all-linear", "ok-rslora-r16"]
COORDINATOR, WORKERS = "10.97.0.1", "10.97.0.2"


def run(*command):
    subprocess.run([str(c) for c in command], check=True)


def setUpModule():
    namespaces.enter("--net", "--mount")  # this process becomes the first machine


class OtherMachine:
    """A network namespace at the other end of a cable. Its programs do not see `hidden` paths."""

    def __init__(self, hidden):
        self.hidden = hidden
        run("mount", "-t", "tmpfs", "none", "/run")  # where ip keeps its names
        run("ip", "link", "set", "lo", "up")
        run("ip", "netns", "add", "workers")
        run("ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1")
        run("ip", "link", "set", "cable1", "netns", "workers")
        run("ip", "addr", "add", f"{COORDINATOR}/24", "dev", "cable0")
        run("ip", "link", "set", "cable0", "up")
        self.run("ip", "addr", "add", f"{WORKERS}/24", "dev", "cable1")
        self.run("ip", "link", "set", "cable1", "up")
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *command):
        hide = "".join(f"mount -t tmpfs none '{path}' && " for path in self.hidden)
        return ["nsenter", "--net=/run/netns/workers", *namespaces.unshare("--mount"), "sh", "-c",
                hide + 'exec "$@"', "sh", *map(str, command)]

    def run(self, *command):
        run(*self.command(*command))


class TwoMachines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The workers' copy of the model.
        there = pathlib.Path(tempfile.mkdtemp(prefix="rootstock-test-workers-"))
        cls.addClassCleanup(shutil.rmtree, there, ignore_errors=True)
        shutil.copytree(MODEL, there / "model")
        cls.there = there
        cls.cluster = rig.Cluster(MODEL)
        cls.cluster.listen = "0.0.0.0:0"
        cls.enterClassContext(cls.cluster)
        cls.machine = OtherMachine([rig.CASES, cls.cluster.folder])
        cls.cluster.groups["g0"] = rig.Process(
            cls.machine.command(
                "mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none",
                rig.BIN / "lora-worker", "--coordinator",
                f"{COORDINATOR}:{cls.cluster.ports['grpc']}", "--model", there / "model",
                "--device", "cpu", "--group", "g0", "--metrics-port", "0", "--threads", "1",
                "--num-pages", "4000", "--cache-dir", there / "cache"),
            there / "g0.log")
        cls.cluster.wait_ready()

    def check_answers(self, name):
        expect = json.loads((rig.CASES / "adapters" / name / "expect.json").read_text())
        for probe in expect["probes"]:
            answer = self.cluster.generate(name, probe["prompt"], len(probe["greedy"]))
            self.assertEqual(answer.code, 0, (name, answer.errors))
            self.assertEqual(answer.tokens, probe["greedy"], name)

    def cached(self):
        return sorted(p.name for p in (self.there / "cache/adapters").glob("[0-9a-f]*"))

    def test_adapters_come_by_digest(self):
        self.assertEqual(subprocess.run(
            self.machine.command("ls", rig.CASES), capture_output=True, check=True).stdout, b"")
        digests = []
        for name in ADAPTERS:
            path = rig.CASES / "adapters" / name
            self.assertEqual(self.cluster.register(name, path).code, 0)
            digests.append(self.cluster.ctl("adapter", "show", name).json["digest"])
            self.check_answers(name)
        self.assertEqual(self.cached(), sorted(digests))


if __name__ == "__main__":
    unittest.main()
