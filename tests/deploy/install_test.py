"""deploy/install.sh does nothing where all is there, and refuses what it does not know."""

import os
import re
import unittest

import scripts


class InstallTest(unittest.TestCase):
    def test_second_run_finds_all_there(self):
        done = scripts.run("install.sh", "--tests", "--bundle", "--no-build", timeout=30)
        self.assertEqual(0, done.returncode, done.stdout)
        self.assertIn("packages: all there", done.stdout)
        self.assertIn("Python: all there", done.stdout)

    def test_unknown_option(self):
        for name in sorted(os.listdir(os.path.join(scripts.ROOT, "deploy"))):
            if name.endswith(".sh") and name != "lib.sh":
                with self.subTest(name):
                    done = scripts.run(name, "--no-such-option", timeout=10)
                    self.assertEqual(2, done.returncode)
                    self.assertIn("unknown option --no-such-option", done.stdout)

    def test_only_without_a_match_ends_before_the_build(self):
        done = scripts.run("../tests/run.sh", "--only", "no_such_name", "--no-packages")
        self.assertEqual(1, done.returncode, done.stdout)
        self.assertIn("--only no_such_name: no test has such a name", done.stdout)
        self.assertNotIn("building", done.stdout)

    def test_help_fits_a_screen(self):
        for name in sorted(os.listdir(os.path.join(scripts.ROOT, "deploy"))):
            if name.endswith(".sh") and name != "lib.sh":
                with self.subTest(name):
                    done = scripts.run(name, "--help", timeout=10)
                    self.assertEqual(0, done.returncode)
                    self.assertIn("usage: deploy/" + name, done.stdout)
                    self.assertLessEqual(done.stdout.count("\n"), 24)

    def test_every_packaged_dependency_is_installed_by_name(self):
        """What CMake requires is in install.sh's list; a name missing there fails elsewhere only."""
        with open(os.path.join(scripts.ROOT, "deploy/cmake/RootstockDependencies.cmake"),
                  encoding="utf-8") as file:
            required = set(re.findall(r"find_package\((\S+) (?:CONFIG )?REQUIRED", file.read()))
        known = {
            "Threads": "g++", "PkgConfig": "pkg-config", "OpenSSL": "libssl-dev",
            "absl": "libabsl-dev", "Protobuf": "libprotobuf-dev", "spdlog": "libspdlog-dev",
            "yaml-cpp": "libyaml-cpp-dev", "prometheus-cpp": "prometheus-cpp-dev",
            "dnnl": "libdnnl-dev", "OpenMP": "g++", "SQLite3": "libsqlite3-dev",
            "ICU": "libicu-dev", "MPI": "libopenmpi-dev", "GTest": "libgtest-dev",
            "CURL": "libcurl4-openssl-dev",
            "benchmark": "libbenchmark-dev", "Python3": "python3", "CUDAToolkit": "",
        }
        with open(os.path.join(scripts.ROOT, "deploy/install.sh"), encoding="utf-8") as file:
            listed = file.read()
        for package in sorted(required):
            with self.subTest(package):
                self.assertIn(package, known)
                self.assertIn(known[package], listed)


if __name__ == "__main__":
    unittest.main()
