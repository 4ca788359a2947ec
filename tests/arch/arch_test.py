"""The checkout keeps the house rules, and each rule is seen to fail on a tree that breaks it."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import arch  # noqa: E402
import cpp  # noqa: E402

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


class CheckoutTest(unittest.TestCase):
    def test_rules_hold(self):
        tree = arch.Tree(ROOT)
        self.assertGreater(len(tree.files), 40)
        for check in arch.CHECKS:
            with self.subTest(check.__name__):
                self.assertEqual([], list(check(tree)))


class BadTreeTest(unittest.TestCase):
    """Each test writes the smallest tree that breaks one rule."""

    def found(self, check, files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = os.path.join(root, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return list(check(arch.Tree(root)))

    def include(self, source, header):
        return self.found(arch.check_arrows, {source: f'#include "{header}"\n', header: ""})

    def external(self, source, header):
        return self.found(arch.check_externals, {source: f"#include <{header}>\n"})

    def test_arrows_upwards_and_sideways(self):
        for source, header in [
            ("coordinator/memory/a.cc", "coordinator/engine/b.h"),
            ("coordinator/scheduler/a.cc", "coordinator/cluster/b.h"),
            ("coordinator/engine/a.cc", "coordinator/rpc/b.h"),
            ("coordinator/rpc/a.cc", "worker/model/b.h"),
            ("worker/ops/a.h", "worker/model/b.h"),
            ("worker/link/a.cc", "coordinator/cluster/b.h"),
            ("worker/model/a.cc", "kernels/b.h"),
            ("common/tp/a.h", "common/layout/b.h"),
            ("common/plan/a.h", "worker/ops/b.h"),
            ("kernels/a.cc", "common/base/b.h"),
            ("coordinator/engine/a.cc", "coordinator/tokenizer/b.h"),
            ("coordinator/tokenizer/a.cc", "coordinator/request/b.h"),
            ("coordinator/rpc/a.cc", "tests/support/b.h"),
        ]:
            with self.subTest(f"{source} -> {header}"):
                self.assertEqual(1, len(self.include(source, header)))

    def test_arrows_downwards(self):
        for source, header in [
            ("coordinator/main.cc", "coordinator/rpc/b.h"),
            ("coordinator/rpc/a.cc", "coordinator/memory/b.h"),
            ("coordinator/rpc/a.cc", "coordinator/tokenizer/b.h"),
            ("worker/main.cc", "worker/device/b.h"),
            ("worker/ops/a.cc", "kernels/b.h"),
            ("worker/ops/a_test.cc", "tests/support/b.h"),
            ("worker/runtime/a.cc", "common/plan/b.h"),
            ("common/wire/a.cc", "common/base/b.h"),
            ("tests/integration/a.cc", "worker/model/b.h"),
            ("kernels/cpu/a.cc", "kernels/cpu/b.h"),
        ]:
            with self.subTest(f"{source} -> {header}"):
                self.assertEqual([], self.include(source, header))

    def test_includes_are_root_relative(self):
        files = {"common/tp/a.cc": '#include "../base/b.h"\n', "common/base/b.h": ""}
        self.assertEqual(1, len(self.found(arch.check_arrows, files)))
        files = {"common/tp/a.cc": '#include "a.h"\n', "common/tp/a.h": ""}
        self.assertEqual(1, len(self.found(arch.check_arrows, files)))

    def test_externals(self):
        for source, header in [
            ("coordinator/engine/a.cc", "rootstock/v1/types.pb.h"),
            ("worker/model/a.cc", "grpcpp/server.h"),
            ("worker/runtime/a.cc", "mpi.h"),
            ("worker/model/a.cc", "dnnl.hpp"),
            ("worker/ops/a.cc", "nccl.h"),
            ("worker/model/a.cc", "cuda_runtime.h"),
            ("coordinator/memory/a.cc", "cublasLt.h"),
            ("kernels/a.cu", "flashinfer/norm.cuh"),
            ("coordinator/engine/a.cc", "sqlite3.h"),
            ("common/base/a.h", "spdlog/spdlog.h"),
            ("common/lora/a.h", "nlohmann/json.hpp"),
        ]:
            with self.subTest(f"{source} -> {header}"):
                self.assertEqual(1, len(self.external(source, header)))

    def test_externals_in_their_place(self):
        for source, header in [
            ("common/wire/a.cc", "rootstock/v1/types.pb.h"),
            ("worker/main.cc", "mpi.h"),
            ("worker/ops/a.cc", "dnnl.h"),
            ("kernels/attention/flashinfer/a.cu", "flashinfer/norm.cuh"),
            ("kernels/a.cu", "cuda_bf16.h"),
            ("common/lora/a.h", "nlohmann/json_fwd.hpp"),
            ("tests/integration/a.cc", "mpi.h"),
        ]:
            with self.subTest(f"{source} -> {header}"):
                self.assertEqual([], self.external(source, header))

    def test_unknown_folder(self):
        self.assertEqual(1, len(self.found(arch.check_unknown_folders, {"worker/misc/a.cc": ""})))

    def test_cycle(self):
        files = {
            "worker/ops/a.h": '#include "worker/model/a.h"\n',
            "worker/model/a.h": '#include "worker/ops/a.h"\n',
        }
        self.assertEqual(1, len(self.found(arch.check_cycles, files)))

    def test_cycle_of_kernels(self):
        files = {
            "kernels/linear/a.h": '#include "kernels/lora/a.h"\n',
            "kernels/linear/deep/b.h": '#include "kernels/linear/a.h"\n',
            "kernels/lora/a.h": "",
            "kernels/lora/a_test.cc": '#include "kernels/linear/a.h"\n',
        }
        self.assertEqual(0, len(self.found(arch.check_cycles, files)))
        files["kernels/lora/bench.cu"] = '#include "kernels/linear/a.h"\n'
        self.assertEqual(1, len(self.found(arch.check_cycles, files)))

    def test_cmake_dependencies(self):
        files = {
            "worker/ops/a.h": '#include "worker/device/a.h"\n#include "common/base/b.h"\n',
            "worker/device/a.h": "",
            "common/base/b.h": "",
            "common/base/CMakeLists.txt": "rootstock_library(common_base)\n",
            "worker/device/CMakeLists.txt": "rootstock_library(worker_device SOURCES a.cc)\n",
            "worker/ops/CMakeLists.txt": "rootstock_library(worker_ops SOURCES a.cc DEPS x\n  common_base)\n",
        }
        found = self.found(arch.check_cmake, files)
        self.assertEqual(1, len(found))
        self.assertIn("worker/device", found[0])

    def test_file_sizes(self):
        for name, lines, errors in [("common/a.cc", 501, 1), ("common/a.cc", 500, 0),
                                    ("worker/main.cc", 151, 1), ("tests/a.py", 501, 1)]:
            with self.subTest(f"{name} {lines}"):
                found = self.found(arch.check_file_sizes, {name: "\n" * lines})
                self.assertEqual(errors, len(found))
        self.assertEqual(1, len(self.found(arch.warn_file_sizes, {"common/a.cc": "\n" * 301})))

    def test_function_sizes(self):
        long_body = "int f(int a) {\n" + "  a++;\n" * 79 + "}\n"
        self.assertEqual(1, len(self.found(arch.check_function_sizes, {"worker/a.cc": long_body})))
        self.assertEqual([], self.found(arch.check_function_sizes, {"kernels/a.cu": long_body}))
        kernel = "__global__ void f(int a) {\n" + "  a++;\n" * 149 + "}\n"
        self.assertEqual(1, len(self.found(arch.check_function_sizes, {"kernels/a.cu": kernel})))
        python = "def f():\n" + "    a = 1\n" * 80
        self.assertEqual(1, len(self.found(arch.check_function_sizes, {"tests/a.py": python})))

    def test_readmes(self):
        found = self.found(arch.check_readmes, {"worker/ops/a.cc": "", "worker/README.md": ""})
        self.assertIn("worker/ops: no README.md", found)
        self.assertNotIn("worker: no README.md", found)

    def test_top_level(self):
        found = self.found(arch.check_top_level, {"scripts/a.sh": "", ".ci/run": ""})
        self.assertIn("scripts: not in the agreed top level", found)
        self.assertIn("LICENSE: missing from the top level", found)
        self.assertFalse([f for f in found if f.startswith(".ci")])

    def test_words(self):
        for text in ["// TO" + "DO: later", "// FIX" + "ME", "TEST(A, DIS" + "ABLED_b) {}",
                     "  GTEST" + "_SKIP();"]:
            with self.subTest(text):
                self.assertEqual(1, len(self.found(arch.check_words, {"common/a.cc": text + "\n"})))
        self.assertEqual([], self.found(arch.check_words, {"common/a.cc": "// todos\n"}))

    def test_third_party(self):
        files = {"kernels/vendor/a.h": "", "kernels/b.h": "// Copyr" + "ight 2023 Somebody\n"}
        self.assertEqual(2, len(self.found(arch.check_third_party, files)))


class CppTest(unittest.TestCase):
    def test_functions(self):
        text = """
        #define MACRO(x) { x }
        namespace a { struct S { S() : b_{1} {} int g() const { return '{'; } int b_; }; }
        const int kTable[] = {1, 2};
        template <class T> T f(T t) { if (t) { return [&] { return t; }(); } return t; }
        bool operator==(const S& a, const S& b) { return true; } // }
        S& S::operator=(const S& o) { return *this; }
        const char* s = "}{"; /* { */
        std::vector<int> h(int n = 3) { return {n}; }
        """
        heads = [head for _, _, head in cpp.functions(text)]
        self.assertEqual(6, len([h for h in heads if not h.startswith(",")]), heads)

    def test_function_extent(self):
        text = "int a;\n\nint f(\n    int b) {\n  return 1'000;\n}\n"
        self.assertEqual([(3, 6)], [(first, last) for first, last, _ in cpp.functions(text)])


if __name__ == "__main__":
    unittest.main()
