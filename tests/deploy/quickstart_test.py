"""deploy/quickstart.sh: every adapter answers in one batch, metrics are clean, nothing stays behind."""

import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
import urllib.request

import scripts

SCRIPT = os.path.join(scripts.ROOT, "deploy/quickstart.sh")


def processes_naming(text):
    """Pids of live processes whose command line holds `text`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if text.encode() in file.read():
                    found.append(int(pid))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.state = folder.name
        self.addCleanup(self.quickstart, "--stop")

    def quickstart(self, *arguments, env=None):
        return scripts.run("quickstart.sh", "--no-install", "--state", self.state, *arguments,
                           env=env)

    def metrics(self, name):
        with open(os.path.join(self.state, f"{name}.ports"), encoding="utf-8") as file:
            ports = re.findall(r"metrics (\d+)", file.read())
        for port in ports:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                yield page.read()

    def test_all_adapters_in_one_batch(self):
        done = self.quickstart("--max-tokens", "16")
        self.assertEqual(0, done.returncode, done.stdout)
        with open(os.path.join(scripts.ROOT, "deploy/demo/prompts.json"), encoding="utf-8") as file:
            models = [entry["model"] for entry in json.load(file)["prompts"]]
        for model in models:
            self.assertRegex(done.stdout, rf"(?m)^{re.escape(model)}\W+\w")
        widest = re.search(r"widest step +(\d+) rows.* (\d+) adapters at once", done.stdout)
        self.assertIsNotNone(widest, done.stdout)
        self.assertEqual(len(models) - 1, int(widest.group(2)), done.stdout)
        self.assertRegex(done.stdout, r"(?m)^metrics +http://127\.0\.0\.1:\d+/metrics")
        # The command to copy gives a sensible answer.
        ask = re.search(r"(?m)^ask +(\S*loractl .*)$", done.stdout).group(1)
        answer = subprocess.run(["bash", "-c", ask], cwd=scripts.ROOT, text=True, check=False,
                                capture_output=True, timeout=120)
        self.assertEqual(0, answer.returncode, answer.stderr)
        self.assertIn("Paris", answer.stdout)
        self.assertRegex(done.stdout, r"(?m)^stop +deploy/quickstart\.sh --stop$")

        promtool = os.path.join(scripts.ROOT, "build/tools/promtool")
        for name in ("coordinator", "worker"):
            for page in self.metrics(name):
                self.assertIn(b"rootstock_", page)
                checked = subprocess.run([promtool, "check", "metrics"], input=page,
                                         capture_output=True, check=False)
                self.assertEqual(b"", checked.stdout + checked.stderr)
                self.assertEqual(0, checked.returncode)

        again = self.quickstart("--max-tokens", "4")
        self.assertEqual(0, again.returncode, again.stdout)
        self.assertIn("the servers of an earlier run are up", again.stdout)
        # A later run that fails leaves them alone, and can't change what they are.
        failed = self.quickstart("--max-tokens", "1000000")
        self.assertNotEqual(0, failed.returncode)
        self.assertIn("max_tokens=1000000", failed.stdout)
        other = self.quickstart("--ranks", "1")
        self.assertNotEqual(0, other.returncode)
        self.assertIn("are up with 2 ranks", other.stdout)
        self.assertEqual(0, self.quickstart("--max-tokens", "4").returncode)
        self.assertEqual(0, self.quickstart("--stop").returncode)
        self.assertEqual([], processes_naming(self.state))

    def test_interrupt_leaves_nothing(self):
        with subprocess.Popen(
                [SCRIPT, "--no-install", "--state", self.state, "--max-tokens", "200"], text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True) as running:
            said = ""
            for line in running.stdout:
                said += line
                if "asking the base" in line:
                    os.killpg(running.pid, signal.SIGINT)
            self.assertEqual(130, running.wait(60), said)
        self.assertEqual([], processes_naming(self.state))

    def test_a_server_that_ends_is_reported(self):
        done = self.quickstart(env={"OMPI_MCA_plm": "no_such_launcher"})
        self.assertEqual(1, done.returncode, done.stdout)
        self.assertIn("worker ended", done.stdout)
        self.assertEqual([], processes_naming(self.state))


if __name__ == "__main__":
    unittest.main()
