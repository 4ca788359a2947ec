"""golden_test with one rank on a GPU: coordinator and lora-worker --device cuda, end to end."""

import golden_test


class Goldens(golden_test.Goldens):
    device = "cuda"
    pool = ("--num-pages", 4000)
    most_ranks = 1


if __name__ == "__main__":
    import unittest
    unittest.main()
