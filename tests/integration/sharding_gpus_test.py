"""sharding_test with a GPU a rank, at every tp_size up to the GPUs of the host."""

import golden_test
import rig
import sharding_test


class Sharding(sharding_test.Sharding):
    device = "cuda"
    most_ranks = rig.num_gpus()

    def test_smollm2(self):
        self.fully_sharded("SmolLM2-135M-Instruct", golden_test.smollm2(), [2, 3])


if __name__ == "__main__":
    import unittest
    unittest.main()
