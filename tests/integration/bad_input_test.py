"""Bad input, each with a clear error that names it; nothing is lost and the server goes on."""

import json
import pathlib
import re
import shutil
import socket
import unittest

import rig

MODEL = rig.CASES / "models/tiny-llama"
PROBE = json.loads((MODEL / "expect.json").read_text())["probes"][0]
CONFIG = json.loads((MODEL / "config.json").read_text())


class Serving(unittest.TestCase):
    """One cluster for all; after every test it still answers."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(rig.Cluster(
            MODEL, "--max-lora-rank", "8", "--adapter", f"preloaded={rig.CASES}/adapters/ok-plain-qv",
            "--adapter", f"broken={rig.CASES}/adapters/no-nan", "--adapter", "nowhere=/no/such"))
        cls.cluster.start_group(1)

    def tearDown(self):
        answer = self.cluster.generate("base", PROBE["prompt"], len(PROBE["greedy"]))
        self.assertEqual(answer.tokens, PROBE["greedy"])

    def refused(self, answer, code, reason, *words):
        self.assertEqual(answer.code, 1, answer.text)
        self.assertEqual(answer.error["code"], code, answer.errors)
        self.assertEqual(answer.error["reason"], reason, answer.errors)
        for word in words:
            self.assertIn(word, answer.error["message"])

    def generate(self, *flags, model="base", ids="1,2,3"):
        prompt = ["--token-ids", ids] if ids else []
        return self.cluster.ctl("generate", "--model", model, *prompt, *flags)

    # ---- requests

    def test_unknown_model_is_never_the_base(self):
        answer = self.generate(model="preloadedd")
        self.refused(answer, "NOT_FOUND", "unknown_model", "preloadedd")

    def test_empty_prompts(self):
        self.refused(self.generate(ids=None), "INVALID_ARGUMENT", "empty_prompt")
        file = self.cluster.folder / "empty.jsonl"
        file.write_text('{"model": "base", "token_ids": []}\n')
        answer = self.cluster.ctl("generate", "--batch", file)
        self.assertEqual(answer.lines[0]["error"]["reason"], "empty_prompt")

    def test_a_prompt_over_the_context(self):
        ids = ",".join(["5"] * (CONFIG["max_position_embeddings"] + 1))
        self.refused(self.generate(ids=ids), "INVALID_ARGUMENT", "context_length",
                     str(CONFIG["max_position_embeddings"]))

    def test_an_answer_over_the_context(self):
        room = CONFIG["max_position_embeddings"] - 3
        self.refused(self.generate("--max-tokens", room + 1), "INVALID_ARGUMENT", "context_length",
                     f"max_tokens={room + 1}", "3 tokens", str(CONFIG["max_position_embeddings"]))
        whole = self.generate("--max-tokens", room, "--ignore-eos")
        self.assertEqual(whole.json["usage"]["completion_tokens"], room)

    def test_tokens_out_of_the_vocabulary(self):
        for token in (-1, CONFIG["vocab_size"], 2**31 - 1):
            self.refused(self.generate(ids=f"1,{token}"), "INVALID_ARGUMENT", "invalid_argument",
                         str(token))

    def test_values_out_of_range(self):
        for flag, value in [("max-tokens", -3), ("max-tokens", 0), ("min-tokens", -1),
                            ("temperature", -0.5), ("temperature", "nan"), ("top-p", 0),
                            ("top-p", 1.5), ("top-k", -2), ("min-p", 2), ("n", 0),
                            ("presence-penalty", 3), ("repetition-penalty", 0),
                            ("logprobs", 100000), ("logprobs", -1), ("prompt-logprobs", -2),
                            ("logit-bias", "100000=1"), ("stop-token-id", 100000)]:
            with self.subTest(flag=flag, value=value):
                answer = self.generate(f"--{flag}", value)
                self.refused(answer, "INVALID_ARGUMENT", "invalid_argument")
                self.assertIn(flag.replace("-", "_").split("_")[0], answer.error["field"])

    def test_text_without_a_tokenizer(self):
        self.refused(self.generate("--prompt", "hi", ids=None), "FAILED_PRECONDITION",
                     "no_tokenizer", "base")
        self.refused(self.generate("--stop", "x"), "FAILED_PRECONDITION", "no_tokenizer")
        self.refused(self.cluster.ctl("tokenize", "hi"), "FAILED_PRECONDITION", "no_tokenizer")

    # ---- adapters

    def test_preloading_reports_and_goes_on(self):
        names = [a["name"] for a in self.cluster.ctl("adapter", "list").json["adapters"]]
        self.assertIn("preloaded", names)
        self.assertNotIn("broken", names)
        log = self.cluster.coordinator.text()
        self.assertIn("broken=", log)
        self.assertIn("nowhere=/no/such", log)
        self.refused(self.generate(model="broken"), "NOT_FOUND", "unknown_model")

    def test_paths(self):
        inside = self.cluster.folder
        (inside / "link").symlink_to("/etc")
        for path in ("/etc", "../models/tiny-llama", "/no/such", "", "ok-plain-qv/../../..",
                     inside / "link"):
            with self.subTest(path=path):
                answer = self.cluster.register("p", path)
                self.assertEqual(answer.code, 1, answer.text)
                self.assertIn(answer.error["reason"], ("path_invalid", "invalid_argument"))

    def test_names(self):
        for name in ("base", "", "UPPER", "a b", "../x", "x" * 80, "-x"):
            with self.subTest(name=name):
                answer = self.cluster.ctl("adapter", "add", "--", name, "ok-plain-qv")
                self.assertEqual(answer.code, 1, answer.text)
                self.assertIn(answer.error["code"], ("INVALID_ARGUMENT", "ALREADY_EXISTS"))
        self.refused(self.cluster.ctl("adapter", "show", "none"), "NOT_FOUND", "unknown_model")
        self.refused(self.cluster.ctl("adapter", "rm", "none"), "NOT_FOUND", "unknown_model")

    def test_a_taken_name(self):
        self.assertEqual(self.cluster.register("preloaded", "ok-plain-qv").code, 0)
        self.refused(self.cluster.register("preloaded", "ok-all-linear"), "ALREADY_EXISTS",
                     "name_taken", "preloaded")

    def test_the_rank_ceiling(self):
        self.refused(self.cluster.register("high", "ok-rslora-r16"), "INVALID_ARGUMENT",
                     "rank_too_high", "16", "8")

    def test_a_refused_name_can_be_used(self):
        self.assertEqual(self.cluster.register("again", "no-dora").code, 1)
        self.assertEqual(self.cluster.register("again", "ok-plain-qv").code, 0)
        self.assertEqual(self.cluster.ctl("adapter", "rm", "again").code, 0)
        self.refused(self.generate(model="again"), "NOT_FOUND", "unknown_model")


class Workers(unittest.TestCase):
    """Groups that can't be: they end with the reason, and the coordinator takes the next one."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(rig.Cluster(MODEL))

    def copy(self, name):
        folder = self.cluster.folder / name
        shutil.copytree(MODEL, folder)
        return folder

    def ends(self, model, *words, tp_size=1):
        group = self.cluster.start_group(tp_size, name="bad", model=model, wait=False)
        self.assertNotEqual(group.wait(), 0)
        for word in words:
            self.assertIn(word, group.text())
        self.assertTrue(self.cluster.coordinator.running)

    def test_missing_weights(self):
        folder = self.copy("missing")
        (folder / "model.safetensors").unlink()
        self.ends(folder, f"model={folder}: has neither model.safetensors nor")

    def test_truncated_weights(self):
        folder = self.copy("truncated")
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        self.ends(folder, "model.safetensors: truncated: the header promises ")

    def test_a_lying_header(self):
        folder = self.copy("lying")
        file = folder / "model.safetensors"
        whole = file.read_bytes()
        file.write_bytes((2**60).to_bytes(8, "little") + whole[8:])
        self.ends(folder, f"model.safetensors: header of {2**60} bytes, at most")
        # Of the right length, and two tensors say that they lie at one place.
        start = 8 + int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:start])
        one, two = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1))
        header[two]["data_offsets"] = header[one]["data_offsets"]
        lie = json.dumps(header).encode()
        file.write_bytes(len(lie).to_bytes(8, "little") + lie + whole[start:])
        self.ends(folder, "model.safetensors=model.layers.", "tensors overlap")

    def test_a_config_of_another_shape(self):
        folder = self.copy("other-config")
        hidden, rows = CONFIG["hidden_size"], CONFIG["vocab_size"]
        (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 2 * hidden}))
        self.ends(folder, "tensor=model.embed_tokens.weight: has shape "
                  f"[{rows}, {hidden}], config.json asks for [{rows}, {2 * hidden}]")

    def test_an_unknown_architecture(self):
        folder = self.copy("architecture")
        (folder / "config.json").write_text(
            json.dumps({**CONFIG, "architectures": ["FalconForCausalLM"]}))
        self.ends(folder, 'architectures=["FalconForCausalLM"]: served are LlamaForCausalLM')

    def test_heads_that_do_not_split(self):
        allowed = rig.tp_sizes(MODEL, 8)
        wrong = next(tp for tp in range(2, 9) if tp not in allowed)
        heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
        self.ends(MODEL, f"tp_size={wrong}: can't split {heads} query heads and {kv_heads} KV heads",
                  tp_size=wrong)

    def test_another_model_on_the_second_rank(self):
        other = self.copy("second")
        file = other / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))
        worker = [rig.BIN / "lora-worker", "--coordinator", self.cluster.address, "--device",
                  "cpu", "--metrics-port", "0", "--cache-dir", self.cluster.folder / "cache"]
        group = rig.Process(["mpirun", "--oversubscribe", "--bind-to", "none",
                             "-np", "1", *worker, "--model", MODEL, ":",
                             "-np", "1", *worker, "--model", other],
                            self.cluster.folder / "second.log")
        self.assertNotEqual(group.wait(), 0)
        # model=DIR (FINGERPRINT): of tp_rank 1 differs from DIR (FINGERPRINT) of tp_rank 0
        second, first = (re.escape(str(folder)) + r" \([0-9a-f]{12}\)" for folder in (other, MODEL))
        self.assertRegex(group.text(),
                         f"model={second}: of tp_rank 1 differs from {first} of tp_rank 0")

    def test_a_group_of_another_model(self):
        other = self.copy("other")
        file = other / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))
        self.cluster.start_group(1)
        self.ends(other, "fingerprint")
        self.assertEqual(self.cluster.end_group(), 0)


class Coordinators(unittest.TestCase):
    """Starts that fail name what was wrong."""

    def run_coordinator(self, *flags):
        folder = pathlib.Path(self.enterContext(rig.tempfile.TemporaryDirectory()))
        process = rig.Process([rig.BIN / "lora-coordinator", "--data", folder / "data",
                               "--metrics-port", "0", "--listen", "127.0.0.1:0", *flags],
                              folder / "log")
        return process.wait(), process.text()

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            folder = pathlib.Path(self.enterContext(rig.tempfile.TemporaryDirectory()))
            for flags in (["--listen", f"127.0.0.1:{port}", "--metrics-port", "0"],
                          ["--listen", "127.0.0.1:0", "--metrics-port", str(port)]):
                process = rig.Process([rig.BIN / "lora-coordinator", "--data", folder / "data",
                                       "--model", MODEL, *flags], folder / "log")
                self.assertEqual(process.wait(), 1)
                self.assertIn(f"127.0.0.1:{port}", process.text())
                for line in process.text().splitlines():  # gRPC's own words too
                    self.assertRegex(line, r"^20\d\d-\d\d-\d\dT[\d:.]+ [DIWE] coordinator  ")

    def test_flags_and_keys(self):
        code, text = self.run_coordinator("--model", MODEL, "--max-num-seqs", "0")
        self.assertEqual(code, 2)
        self.assertIn("max-num-seqs=0", text)
        config = pathlib.Path(self.enterContext(rig.tempfile.TemporaryDirectory())) / "c.yaml"
        config.write_text("max-num-sesq: 3\n")
        code, text = self.run_coordinator("--model", MODEL, "--config", config)
        self.assertEqual(code, 2)
        self.assertIn("max-num-sesq=3", text)
        code, text = self.run_coordinator("--model", MODEL, "--adapter", "pirate")
        self.assertEqual(code, 2)
        self.assertIn("adapter=pirate: must be NAME=PATH", text)

    def test_models(self):
        code, text = self.run_coordinator("--model", "/no/such/model")
        self.assertEqual(code, 1)
        self.assertIn("/no/such/model", text)
        code, text = self.run_coordinator("--model", MODEL, "--max-model-len", "100000000")
        self.assertEqual(code, 1)
        self.assertIn("max-model-len=100000000", text)


if __name__ == "__main__":
    unittest.main()
