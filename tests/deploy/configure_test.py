"""What the tests' own build leaves out of configuring."""

import subprocess
import tempfile
import unittest

import scripts


class Configure(unittest.TestCase):
    def configure(self, *flags):
        with tempfile.TemporaryDirectory() as build:
            return subprocess.run(["cmake", *flags, "-B", build], cwd=scripts.ROOT,
                                  capture_output=True, text=True, check=False)

    def test_the_release_preset(self):
        done = self.configure("--preset", "release")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_plain_sm_90_is_refused(self):
        done = self.configure("-S", ".", "-G", "Ninja", "-DROOTSTOCK_CUDA=ON",
                              "-DCMAKE_CUDA_ARCHITECTURES=80;90")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("CMAKE_CUDA_ARCHITECTURES=90: name each architecture, and sm_90 as", done.stderr)


if __name__ == "__main__":
    unittest.main()
