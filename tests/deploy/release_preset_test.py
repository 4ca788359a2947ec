"""The release preset, which the tests' own build leaves out, can be configured."""

import subprocess
import tempfile
import unittest

import scripts


class ReleasePreset(unittest.TestCase):
    def test_configures(self):
        with tempfile.TemporaryDirectory() as build:
            done = subprocess.run(["cmake", "--preset", "release", "-B", build], cwd=scripts.ROOT,
                                  capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
