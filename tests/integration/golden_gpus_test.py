"""golden_test with a GPU a rank, at every tp_size up to the GPUs of the host."""

import golden_test
import rig


class Goldens(golden_test.Goldens):
    device = "cuda"
    pool = ("--num-pages", 4000)
    most_ranks = rig.num_gpus()
    reload_at_every_size = True


if __name__ == "__main__":
    import unittest
    unittest.main()
