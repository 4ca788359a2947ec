"""A bundle's programs find every library beside them, or on the target as documented."""

import os
import re
import subprocess
import tempfile
import unittest

import scripts

BUILD = os.environ.get("ROOTSTOCK_BINARY_DIR", os.path.join(scripts.ROOT, "build/dev"))
FROM_TARGET = re.compile(
    r"^(linux-vdso|ld-linux|lib(c|m|mvec|pthread|dl|rt|resolv|util)\.so|lib(mpi|open-))")


class BundleTest(unittest.TestCase):
    def test_bundle_runs_from_another_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            archive = os.path.join(folder, "rootstock.tar.zst")
            done = scripts.run("bundle.sh", "--preset", os.path.basename(BUILD), "--no-build",
                               "--with", "tests/common_base_test", "--output", archive)
            self.assertEqual(0, done.returncode, done.stdout)
            subprocess.run(["tar", "--zstd", "-xf", archive, "-C", folder], check=True)
            root = os.path.join(folder, "rootstock")
            self.check_libraries(root)
            ran = subprocess.run([os.path.join(root, "bin/common_base_test")], env={}, cwd="/",
                                 capture_output=True, text=True, check=False)
            self.assertEqual(0, ran.returncode, ran.stdout + ran.stderr)

    def check_libraries(self, root):
        """What a packed file needs is packed, or the target's, never both."""
        packed = set(os.listdir(os.path.join(root, "lib")))
        self.assertEqual([], [name for name in packed if FROM_TARGET.match(name)])
        for folder, run_path in (("bin", "[$ORIGIN/../lib]"), ("lib", "[$ORIGIN]")):
            for name in os.listdir(os.path.join(root, folder)):
                dynamic = subprocess.run(
                    ["readelf", "-d", os.path.join(root, folder, name)], text=True,
                    capture_output=True, check=True).stdout
                self.assertIn(f"Library runpath: {run_path}", dynamic, name)
                for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                    with self.subTest(file=name, needed=needed):
                        self.assertTrue(needed in packed or FROM_TARGET.match(needed))


if __name__ == "__main__":
    unittest.main()
