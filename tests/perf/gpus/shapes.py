"""Writes OUT/SHAPE/config.json for each SHAPE: `python3 shapes.py OUT SHAPE...`."""

import json
import pathlib
import sys

# hidden, ffn, layers, query heads, KV heads, head_dim, vocabulary
SHAPES = {
    "8b": (4096, 14336, 32, 32, 8, 128, 128256),
    "13b": (5120, 13824, 40, 40, 40, 128, 32000),
    "70b": (8192, 28672, 80, 64, 8, 128, 128256),
    "toy": (512, 1024, 3, 16, 8, 32, 1024),
}
NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "head_dim", "vocab_size")

out = pathlib.Path(sys.argv[1])
for shape in sys.argv[2:]:
    (out / shape).mkdir(parents=True, exist_ok=True)
    (out / shape / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        **dict(zip(NAMES, SHAPES[shape], strict=True)), "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "hidden_act": "silu", "torch_dtype": "bfloat16"}))
