"""Real servers for tests: a coordinator and worker groups of this build, driven by loractl."""

import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ROOTSTOCK_BINARY_DIR", ROOT / "build/dev"))
BIN = BUILD / "bin"
CASES = ROOT / "tests/cases"
START_SECONDS = 90  # of anything, on a machine that does much else

ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}


def wait_for(what, condition, seconds=START_SECONDS):
    """The condition's first true value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


class Process:
    """A program in a session of its own, its output in a file, its errors in it or in another."""

    def __init__(self, command, log, env=None, errors=None):
        self.log = pathlib.Path(log)
        self.errors = errors and pathlib.Path(errors)
        with open(self.log, "wb") as out, open(self.errors or os.devnull, "wb") as err:
            self.popen = subprocess.Popen(
                [str(c) for c in command], stdout=out,
                stderr=err if self.errors else subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True, env={**ENVIRONMENT, **(env or {})})

    @property
    def running(self):
        return self.popen.poll() is None

    def text(self):
        return "".join(file.read_text(errors="replace")
                       for file in (self.log, self.errors) if file)

    def answers(self):
        """What a `loractl --json` said, whose notices went elsewhere."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def send(self, number):
        self.popen.send_signal(number)

    def wait(self, seconds=START_SECONDS):
        return self.popen.wait(seconds)

    def children(self):
        """Process ids; mpirun gives each rank a process group of its own."""
        found = subprocess.run(["pgrep", "-P", str(self.popen.pid)], capture_output=True,
                               text=True, check=False).stdout
        return [int(pid) for pid in found.split()]

    def kill(self):
        """Everything it started too, the hard way."""
        for pid in [*self.children(), self.popen.pid] if self.running else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.popen.wait()


class Answer:
    """What `loractl --json` said."""

    def __init__(self, code, text, errors):
        self.code, self.text, self.errors = code, text, errors
        self.lines = [json.loads(line) for line in text.splitlines() if line.startswith("{\"")]
        self.json = None
        if self.lines:
            self.json = self.lines[0]
        elif text.strip():
            self.json = json.loads(text)

    @property
    def error(self):
        return self.json.get("error") if isinstance(self.json, dict) else None

    @property
    def tokens(self):
        return self.json["samples"][0]["token_ids"]


class Cluster:
    """One coordinator on ports of the system's choice, and its groups. A context manager."""

    def __init__(self, model, *flags, adapter_root=CASES / "adapters", name="base"):
        self.model, self.name = pathlib.Path(model), name
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rootstock-test-"))
        self.flags = [*([] if "--max-logprobs" in flags else ["--max-logprobs", "1000"]), *flags]
        self.adapter_root = adapter_root
        self.listen = "127.0.0.1:0"
        self.env = {}  # of the coordinator
        self.metrics_port = 0
        self.groups = {}
        self.coordinator = None
        self.ports = {}

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in [*self.groups.values(), self.coordinator]:
            if process is not None:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- the coordinator

    def start(self):
        """Starts it; a second time on the ports that it had."""
        port_file = self.folder / "ports"
        port_file.unlink(missing_ok=True)
        self.coordinator = Process(
            [BIN / "lora-coordinator", "--listen", self.listen, "--metrics-port", self.metrics_port,
             "--port-file", port_file, "--data", self.folder / "data", "--model", self.model,
             "--served-model-name", self.name, "--adapter-root", self.adapter_root, *self.flags],
            self.folder / "coordinator.log", self.env)
        wait_for("the coordinator's ports", lambda: port_file.exists() or not self._alive())
        self.ports = dict(line.split() for line in port_file.read_text().splitlines())
        self.listen = f"127.0.0.1:{self.ports['grpc']}"

    def _alive(self):
        if self.coordinator.running:
            return True
        raise AssertionError(f"the coordinator ended:\n{self.coordinator.text()}")

    @property
    def address(self):
        return f"127.0.0.1:{self.ports['grpc']}"

    # ---- groups

    def start_group(self, tp_size, *flags, name="g0", group=None, model=None, wait=True, env=None):
        """`name` is the rig's; `group` what the run calls itself, if that is another."""
        if name in self.groups:
            self.groups[name].kill()
        group = Process(
            ["mpirun", "-np", str(tp_size), "--oversubscribe", "--bind-to", "none",
             BIN / "lora-worker", "--coordinator", self.address, "--model", model or self.model,
             *([] if "--device" in flags else ["--device", "cpu"]),
             "--group", group or name, "--metrics-port", "0",
             "--port-file", self.folder / f"{name}.ports",
             "--cache-dir", self.folder / f"{name}.cache",
             *([] if "--threads" in flags else ["--threads", "1"]),
             *([] if {"--num-pages", "cuda"} & set(flags) else ["--num-pages", "4000"]), *flags],
            self.folder / f"{name}.log", env)
        self.groups[name] = group
        if wait:
            self.wait_ready(name)
        return group

    def wait_ready(self, name="g0", epoch=None):
        def ready():
            process = self.groups[name]
            if not process.running:
                raise AssertionError(f"group {name} ended:\n{process.text()}")
            group = self.group(name)
            return (group and group["state"] == "ready" and
                    (epoch is None or int(group["epoch"]) != epoch) and group)
        return wait_for(f"group {name}", ready)

    def end_group(self, name="g0"):
        """Drains it as an operator does; the exit code."""
        self.groups[name].send(signal.SIGUSR1)
        return self.groups[name].wait()

    def worker_ports(self, name="g0"):
        """Metrics ports by tp_rank."""
        text = (self.folder / f"{name}.ports").read_text()
        return [int(port) for port in re.findall(r"metrics (\d+)", text)]

    # ---- loractl

    def ctl(self, *arguments, timeout=120):
        run = subprocess.run(
            [str(BIN / "loractl"), "--address", self.address, "--json", *map(str, arguments)],
            capture_output=True, text=True, timeout=timeout, check=False)
        return Answer(run.returncode, run.stdout, run.stderr)

    def status(self):
        return self.ctl("status").json

    def group(self, name="g0"):
        status = self.status() or {}
        return next((g for g in status.get("groups", []) if g["name"] == name), None)

    def register(self, name, path):
        return self.ctl("adapter", "add", name, path)

    def generate(self, model, prompt, max_tokens, *flags):
        """Greedy, by token ids."""
        return self.ctl("generate", "--model", model, "--token-ids", ",".join(map(str, prompt)),
                        "--max-tokens", max_tokens, "--temperature", "0", *flags)

    def batch(self, requests):
        """Sends {label: request}; the answers by label."""
        file = self.folder / "batch.jsonl"
        file.write_text("".join(
            json.dumps({"temperature": 0, "label": label, **request}) + "\n"
            for label, request in requests.items()))
        answer = self.ctl("generate", "--batch", file, timeout=300)
        return {line["label"]: line for line in answer.lines}

    def stream(self, *arguments):
        """A generate that stays open; its output in a file."""
        return Process([BIN / "loractl", "--address", self.address, "generate", *arguments],
                       self.folder / f"stream-{time.monotonic_ns()}.log")

    def healthy(self):
        """Whether grpc.health.v1 says that the server serves, asked in plain HTTP/2."""
        def frame(kind, flags, stream, payload):
            return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + \
                stream.to_bytes(4, "big") + payload
        headers = {":method": "POST", ":scheme": "http", ":path": "/grpc.health.v1.Health/Check",
                   ":authority": "t", "te": "trailers", "content-type": "application/grpc"}
        fields = b"".join(b"\0" + b"".join(bytes([len(word)]) + word.encode() for word in pair)
                          for pair in headers.items())
        with socket.create_connection(self.address.split(":"), 10) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") +
                               frame(1, 4, 1, fields) + frame(0, 1, 1, bytes(5)))
            stream = connection.makefile("rb")
            while True:
                head = stream.read(9)
                payload = stream.read(int.from_bytes(head[:3], "big"))
                if head[3] == 0:  # DATA: a gRPC message, HealthCheckResponse{status}
                    return payload[5:] == b"\x08\x01"

    # ---- metrics

    def scrape(self, port=None):
        with urllib.request.urlopen(
                f"http://127.0.0.1:{port or self.ports['metrics']}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def metric(self, name, **labels):
        """The value of one series; None when there is none."""
        for line in self.scrape().splitlines():
            match = re.match(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if not match or match[1] != f"rootstock_{name}":
                continue
            if dict(re.findall(r'(\w+)="([^"]*)"', match[2] or "")) == labels:
                return float(match[3])
        return None


def log_softmax(logits):
    top = max(logits)
    total = math.log(sum(math.exp(x - top) for x in logits))
    return [x - top - total for x in logits]


def running(pids):
    """Those of the processes that have not ended."""
    def state(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "Z"

    return [pid for pid in pids if state(pid) != "Z"]


def num_gpus():
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return sum(line.startswith("GPU ") for line in said.stdout.splitlines())


def tp_sizes(model, most=4):
    """The tp_sizes that a model's heads allow."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads", heads)
    return [tp for tp in range(1, most + 1)
            if tp <= kv or (tp % kv == 0 and (heads // kv) % (tp // kv) == 0)]
