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

    def test_bad_values_are_found_before_anything_is_done(self):
        for script, flags, told in (
                ("quickstart.sh", ["--max-tokens", "many"], "--max-tokens many: must be a whole"),
                ("quickstart.sh", ["--max-tokens", "0"], "--max-tokens 0: must be a whole"),
                ("quickstart.sh", ["--ranks", "4"], "--ranks 4: must be a whole number from 1 to 3"),
                ("quickstart.sh", ["--ranks", "08"], "--ranks 08: must be a whole"),
                ("quickstart.sh", ["--ranks"], "--ranks needs a number"),
                ("quickstart.sh", ["--state", ""], "--state needs a folder"),
                ("install.sh", ["--jobs", "-2"], "--jobs -2: must be a whole"),
                ("install.sh", ["--preset", "debug"], "--preset debug: CMakePresets.json has no"),
                ("install.sh", ["--target"], "--target needs a name"),
                ("bundle.sh", ["--preset", "debug"], "--preset debug: CMakePresets.json has no"),
                ("bundle.sh", ["--with"], "--with needs a path"),
                ("../tests/run.sh", ["--jobs", "all"], "--jobs all: must be a whole"),
                ("../tests/run.sh", ["--only", "a[b"], "--only a[b: is no regular expression"),
                ("../tests/run.sh", ["--only"], "--only needs a pattern")):
            with self.subTest(script=script, flags=flags):
                done = scripts.run(script, *flags, timeout=10)
                self.assertEqual(2, done.returncode, done.stdout)
                self.assertIn(told, done.stdout)
                self.assertNotIn("==", done.stdout)  # what a script says that begins its work

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
