"""sharding_test with a GPU a rank, at every tp_size up to the GPUs of the host."""

import rig
import sharding_test


class Sharding(sharding_test.Sharding):
    device = "cuda"
    most_ranks = rig.num_gpus()


if __name__ == "__main__":
    import unittest
    unittest.main()
