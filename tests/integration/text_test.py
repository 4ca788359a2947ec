"""SmolLM2 with text: what a client reads, and what ends it."""

import json
import subprocess
import unittest

import golden_test
import goldens
import rig

GOLDENS = goldens.GOLDENS["SmolLM2-135M-Instruct"]
PROMPTS = json.loads((goldens.GOLDEN / "smollm2--pirate.json").read_text())["prompts"]
GOLDEN = GOLDENS["pirate"]["prompts"][0]
PROMPT, ANSWER = PROMPTS[0]["prompt"], PROMPTS[0]["answer"]
TOKENS = GOLDEN["tokens"].tolist()


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(rig.Cluster(
            golden_test.smollm2(), adapter_root=rig.ROOT / "deploy/demo/adapters"))
        cls.cluster.start_group(2, "--dtype", "f32")
        assert cls.cluster.register("pirate", "pirate").code == 0

    def ask(self, *flags, prompt=PROMPT, max_tokens=64):
        return self.cluster.ctl("generate", "--model", "pirate", "--prompt", prompt,
                                "--parse-special", "--max-tokens", max_tokens, "--temperature", 0,
                                "--echo-token-ids", *flags)

    def sample(self, *flags, **options):
        answer = self.ask(*flags, **options)
        self.assertEqual(answer.code, 0, answer.errors)
        return answer.json["samples"][0]

    def test_text_becomes_the_golden_tokens(self):
        ids = self.cluster.ctl("tokenize", PROMPT, "--parse-special").json["token_ids"]
        self.assertEqual(ids, GOLDEN["prompt"].tolist())
        plain = self.cluster.ctl("tokenize", "<|im_start|>").json["token_ids"]
        self.assertGreater(len(plain), 1)
        joined = ",".join(map(str, ids))
        whole = self.cluster.ctl("detokenize", joined, "--skip-special-tokens=false").json
        self.assertEqual(whole, {"text": PROMPT})
        shown = self.cluster.ctl("detokenize", joined).json["text"]
        self.assertNotIn("<|im_start|>", shown)
        self.assertIn(shown.splitlines()[0], PROMPT)

    def test_the_answer_is_the_golden_text(self):
        sample = self.sample("--ignore-eos", "--skip-special-tokens=false")
        self.assertEqual(sample["token_ids"], TOKENS)
        self.assertEqual(sample["text"], ANSWER)
        self.assertEqual(sample["finish_reason"], "length")

    def test_the_end_token_ends_the_answer(self):
        answer = self.ask()
        sample = answer.json["samples"][0]
        end = TOKENS.index(int(sample["stop_match"]))
        self.assertEqual(sample["finish_reason"], "stop")
        self.assertEqual(sample["token_ids"], TOKENS[:end + 1])
        self.assertEqual(sample["text"], ANSWER[:len(sample["text"])])
        self.assertNotIn("<|", sample["text"])
        self.assertEqual(answer.json["usage"]["completion_tokens"], end + 1)
        longer = self.sample("--min-tokens", end + 3)
        self.assertGreaterEqual(len(longer["token_ids"]), end + 3)

    def test_a_stop_string_across_tokens(self):
        stop = ANSWER[8:16]  # begins and ends inside tokens
        counted = self.cluster.metric("output_tokens_total", tenant_class="default")
        answer = self.ask("--stop", stop, "--stop", "never said")
        # Those that the group made until it heard of the stop are not counted.
        self.assertEqual(self.cluster.metric("output_tokens_total", tenant_class="default"),
                         counted + answer.json["usage"]["completion_tokens"])
        sample = answer.json["samples"][0]
        self.assertEqual(sample["text"], ANSWER[:8])
        self.assertEqual((sample["finish_reason"], sample["stop_match"]), ("stop", stop))
        self.assertEqual(answer.json["usage"]["completion_tokens"], len(sample["token_ids"]))
        self.assertEqual(sample["token_ids"], TOKENS[:len(sample["token_ids"])])
        self.assertLess(len(sample["token_ids"]), 16)
        shown = self.sample("--stop", stop, "--include-stop")
        self.assertEqual(shown["text"], ANSWER[:16])

    def test_a_stop_token(self):
        sample = self.sample("--stop-token-id", TOKENS[3])
        end = TOKENS.index(TOKENS[3])
        self.assertEqual(sample["token_ids"], TOKENS[:end + 1])
        self.assertEqual(sample["stop_match"], str(TOKENS[3]))
        self.assertTrue(ANSWER.startswith(sample["text"]))

    def test_samples_and_seeds(self):
        def draw(*flags):
            return self.cluster.ctl("generate", "--model", "pirate", "--prompt", "Once upon a time",
                                    "--max-tokens", 12, "--temperature", 1, "--echo-token-ids",
                                    *flags).json
        first = draw("--seed", 7, "--n", 3)
        texts = [tuple(s["token_ids"]) for s in first["samples"]]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(first["seed"], 7)
        again = draw("--seed", 7, "--n", 3)
        self.assertEqual([tuple(s["token_ids"]) for s in again["samples"]], texts)
        drawn = draw()
        self.assertEqual(draw("--seed", drawn["seed"])["samples"], drawn["samples"])
        self.assertNotEqual(draw("--seed", 8)["samples"][0]["token_ids"], list(texts[0]))

    def test_logprobs_have_texts(self):
        sample = self.sample("--logprobs", 2, "--prompt-logprobs", 1, max_tokens=4)
        self.assertEqual("".join(p["text"] for p in sample["logprobs"]), sample["text"])
        for entry, token in zip(sample["logprobs"], sample["token_ids"]):
            self.assertEqual(entry["token_id"], token)
            self.assertEqual(entry["rank"], 1)
            self.assertEqual([t["token_id"] for t in entry["top"]][0], token)
        answer = self.ask("--prompt-logprobs", 1, max_tokens=1)
        entries = answer.json["prompt_logprobs"]
        self.assertEqual([e["token_id"] for e in entries], GOLDEN["prompt"].tolist()[1:])

    def test_a_bias_decides(self):
        sample = self.sample("--logit-bias", "42=100", max_tokens=3)
        self.assertEqual(sample["token_ids"], [42, 42, 42])

    def test_an_empty_text_is_no_prompt(self):
        self.assertEqual(self.ask(prompt="").error["reason"], "empty_prompt")

    def test_the_terminal_gets_text_as_it_comes(self):
        stream = self.cluster.stream("--model", "pirate", "--prompt", PROMPT, "--parse-special",
                                     "--temperature", "0", "--max-tokens", "20")
        self.assertEqual(stream.wait(), 0)
        text = stream.text()
        self.assertTrue(ANSWER.startswith(text.rstrip("\n")), text)
        self.assertGreater(len(text), 20)

    def test_a_batch_is_labelled_by_line(self):
        file = self.cluster.folder / "labels.jsonl"
        file.write_text("".join(json.dumps(
            {"model": model, "prompt": PROMPT, "parse_special": True, "temperature": 0,
             "max_tokens": 12}) + "\n" for model in ("base", "pirate")))
        run = subprocess.run([rig.BIN / "loractl", "--address", self.cluster.address, "generate",
                              "--batch", file], capture_output=True, text=True, check=True)
        lines = run.stdout.splitlines()
        self.assertEqual({line.split(" ")[0] for line in lines}, {"base", "pirate"})
        self.assertTrue(all(" | " in line for line in lines), lines)


if __name__ == "__main__":
    unittest.main()
