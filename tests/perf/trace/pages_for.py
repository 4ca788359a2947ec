#!/usr/bin/env python3
"""Pages that an adapter takes on one rank, on average over some, and elements of a page.

python3 pages_for.py MODEL_DIR PAGE_TOKENS ADAPTER_DIR [ADAPTER_DIR ...] prints "PAGES ELEMENTS".
"""

import json
import math
import pathlib
import sys


def elements_of(file):
    with open(file, "rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return sum(math.prod(t["shape"]) for name, t in header.items() if name != "__metadata__")


def main():
    model, page_tokens = pathlib.Path(sys.argv[1]), sys.argv[2]
    config = json.loads((model / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    page = (config["num_hidden_layers"] * 2 * int(page_tokens) * head_dim *
            config.get("num_key_value_heads", heads))
    # Rows never cross a page: the last one of each page may leave a rest.
    row = max(config["hidden_size"], heads * head_dim)
    pages = [math.ceil(elements_of(pathlib.Path(adapter) / "adapter_model.safetensors") / (page - row))
             for adapter in sys.argv[3:]]
    print(math.ceil(sum(pages) / len(pages)), page)


if __name__ == "__main__":
    main()
