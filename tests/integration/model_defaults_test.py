"""What a model's folder says of generation: used where a request is silent."""

import json
import shutil
import unittest

import rig

MODEL = rig.CASES / "models/tiny-llama"
PROBE = json.loads((MODEL / "expect.json").read_text())["probes"][0]


class GenerationConfig(unittest.TestCase):
    def test_end_tokens_and_sampling(self):
        greedy = PROBE["greedy"]
        end = greedy[5]
        first = greedy.index(end)
        with rig.Cluster(MODEL) as cluster:
            model = cluster.folder / "model"
            shutil.copytree(MODEL, model)
            (model / "generation_config.json").write_text(json.dumps(
                {"eos_token_id": [319, end], "do_sample": True, "temperature": 1.5, "top_k": 1}))
            cluster.coordinator.kill()
            cluster.model = model
            cluster.start()
            cluster.start_group(1)

            def ask(*flags):
                answer = cluster.ctl("generate", "--model", "base", "--token-ids",
                                     ",".join(map(str, PROBE["prompt"])), "--max-tokens",
                                     len(greedy), *flags)
                self.assertEqual(answer.code, 0, answer.errors)
                return answer.json["samples"][0]

            silent = ask()  # the likeliest one only: greedy
            self.assertEqual(silent["token_ids"], greedy[:first + 1])
            self.assertEqual((silent["finish_reason"], silent["stop_match"]), ("stop", str(end)))
            self.assertEqual(ask("--ignore-eos")["token_ids"], greedy)
            drawn = ask("--ignore-eos", "--top-k", "0", "--seed", "3")
            self.assertNotEqual(drawn["token_ids"], greedy)


if __name__ == "__main__":
    unittest.main()
