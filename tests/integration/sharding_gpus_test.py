"""sharding_test with a GPU a rank, at every tp_size up to the GPUs of the host."""

import golden_test
import goldens
import rig
import sharding_test


class Sharding(sharding_test.Sharding):
    device = "cuda"
    most_ranks = rig.num_gpus()

    def test_smollm2_at_2(self):
        self.fully_sharded("SmolLM2-135M-Instruct", golden_test.smollm2(), 2)

    def test_smollm2_at_3(self):
        self.fully_sharded("SmolLM2-135M-Instruct", golden_test.smollm2(), 3)


# Not fewer than two: without a second GPU these tests fail.
goldens.leave_out(Sharding, max(2, Sharding.most_ranks))

if __name__ == "__main__":
    import unittest
    unittest.main()
