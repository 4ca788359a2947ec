"""What each tp_rank of a starting group brings from the disk and holds in memory, and what becomes of
the others when one fails amid its load."""

import os
import pathlib
import re
import shutil
import signal
import tempfile
import unittest

import golden_test
import rig

FILES = ["config.json", "model.safetensors"]
# Without a cache of adapters: memory is limited to what the weights need.
FLAGS = ["--coordinator", "127.0.0.1:1", "--device", "cpu", "--dtype", "f32", "--threads", "1",
         "--metrics-port", "0", "--num-pages", "50", "--host-cache-bytes", "0"]
ELSE = 24 << 20  # of a rank's memory: pages, workspaces, MPI


def said(pid, name, key):
    """A number of /proc/PID/NAME."""
    text = pathlib.Path(f"/proc/{pid}/{name}").read_text()
    return int(re.search(rf"^{key}:\s*(\d+)", text, re.MULTILINE)[1])


def tp_rank(pid):
    return int(re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)",
                         pathlib.Path(f"/proc/{pid}/environ").read_bytes())[1])


class DiskBytes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A copy beside the build, which lies on a disk: nobody else has mapped it."""
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="disk-bytes-", dir=rig.BUILD))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name in FILES:
            shutil.copy(golden_test.smollm2() / name, cls.folder)
        cls.file = cls.folder / "model.safetensors"

    def start(self, *ranks):
        """A group of `ranks` commands, which waits for a coordinator once it has its weights."""
        words = ["mpirun", "--oversubscribe", "--bind-to", "none"]
        for i, before in enumerate(ranks):
            words += [*([":"] if i else []), "-np", "1", *before, rig.BIN / "lora-worker", "--model",
                      self.folder, *FLAGS]
        group = rig.Process(words, self.folder / "log")
        self.addCleanup(group.kill)
        return group

    def ready(self, tp_size):
        """Process ids by tp_rank, and what ends the group."""
        group = self.start(*[[]] * tp_size)
        rig.wait_for("the weights", lambda: group.text().count("ready: tp_rank") == tp_size)
        return sorted(group.children(), key=tp_rank), group

    @staticmethod
    def end(group):
        group.send(signal.SIGUSR1)
        group.wait()

    def drop(self):
        with open(self.file, "rb+") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def test_each_rank_brings_its_share(self):
        self.end(self.ready(2)[1])  # of the programs themselves nothing is to be counted
        size = self.file.stat().st_size
        for tp_size in (2, 3):
            self.drop()
            ranks, group = self.ready(tp_size)
            brought = [said(pid, "io", "read_bytes") for pid in ranks]
            # A slow rank tells of its progress, too.
            shares = [int(share) << 20 for _, share in sorted(dict(re.findall(
                r"worker\[(\d)/\d\].* weights: \d+ of (\d+) MiB", group.text())).items())]
            held = [self.memory(pid) for pid in ranks]
            self.end(group)
            self.assertEqual(len(shares), tp_size)
            # What they say that they bring: the file once, to equal parts but for uneven heads.
            self.assertLess(sum(shares), 1.02 * size)
            self.assertGreater(sum(shares), 0.98 * size)
            self.assertLess(max(shares), 1.1 * size / tp_size)
            self.check_held(held, shares, size)
            if sum(brought) < size / 2:
                print(f"tp_size {tp_size}: no disk counts here; the ranks' word:", shares)
                continue
            print(f"tp_size {tp_size}:", [round(b / s, 3) for b, s in zip(brought, shares)])
            self.assertLess(sum(brought), 1.02 * size)
            for rank, (bytes_, share) in enumerate(zip(brought, shares)):
                self.assertLess(bytes_, 1.1 * share, f"tp_rank {rank} of {tp_size}")

    @staticmethod
    def memory(pid):
        """(its own, its part of what it shares) in bytes."""
        return (said(pid, "smaps_rollup", "Pss_Anon") << 10,
                said(pid, "smaps_rollup", "Pss_File") + said(pid, "smaps_rollup", "Pss_Shmem") << 10)

    def check_held(self, held, shares, size):
        """The weights are there once over all ranks, in f32 of a file in bf16, and no file beside."""
        for rank, ((own, _), share) in enumerate(zip(held, shares, strict=True)):
            self.assertLess(own, 2.02 * share + ELSE, f"tp_rank {rank} of {len(held)}")
        self.assertLess(sum(own for own, _ in held), 2.02 * size + len(held) * ELSE)
        self.assertLess(sum(shared for _, shared in held), 0.15 * size)

    def test_a_rank_that_fails_amid_its_load_ends_all(self):
        ranks, group = self.ready(2)
        peak = said(ranks[1], "status", "VmPeak")
        self.end(group)
        limited = ["sh", "-c", f'ulimit -v {peak - (150 << 10)}; exec "$0" "$@"']
        group = self.start([], limited)
        self.assertNotEqual(group.wait(), 0)
        self.assertRegex(group.text(), "tp_rank 1.*model weights.*not to be had")


if __name__ == "__main__":
    unittest.main()
