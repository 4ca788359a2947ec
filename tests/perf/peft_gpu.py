#!/usr/bin/env python3
"""Goal 6: transformers + PEFT adapter_names on a GPU beside `lora-bench step`, one model, one run.

    python3 tests/perf/peft_gpu.py --bench build/dev/bin/lora-bench --out OUT_DIR

Random weights and adapters of 8 layers at an 8B's shapes (2.0 B parameters; r16 on q, k, v, o) are
written to a scratch folder and read by both sides. PEFT runs in bf16 for the times and in float32
for the tokens; ours likewise. Writes OUT_DIR/gpu-vs-peft.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import threading
import time
from datetime import date
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

CASES = [(16, 8, 25.0), (64, 64, 100.0)]  # rows, adapters, tokens/s over PEFT's
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj"]
RANK = 16
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True, help="lora-bench")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, help="room for 5 GB; default: a temporary folder")
    parser.add_argument("--context", type=int, default=128, help="prompt tokens a row")
    parser.add_argument("--steps", type=int, default=4, help="decode steps of PEFT that are timed")
    parser.add_argument("--tokens", type=int, default=8, help="greedy tokens a row to compare")
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


def make_model(folder: Path) -> tuple[torch.nn.Module, threading.Thread]:
    """The model, and the thread that writes it."""
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG), dtype=torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {k: v.cpu().contiguous() for k, v in model.state_dict().items()}
    writer = threading.Thread(target=save_file, args=(tensors, folder / "model.safetensors"))
    writer.start()
    return model.eval(), writer


def add_adapters(model: torch.nn.Module, folder: Path, count: int) -> tuple[torch.nn.Module, list]:
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=MODULES, lora_dropout=0.0)
    names = [f"a{i}" for i in range(count)]
    with torch.device("cuda"):
        peft = get_peft_model(model, config, adapter_name=names[0], autocast_adapter_dtype=False)
        for name in names[1:]:
            peft.add_adapter(name, config)
    tensors: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names}
    for key, value in peft.named_parameters():
        if ".lora_" not in key:
            continue
        stem, name, _ = key.rsplit(".", 2)
        value.data.normal_(0.0, 0.02)
        value.data = value.data.to(torch.bfloat16)
        tensors[name][f"{stem}.weight"] = value.data.cpu().contiguous()
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        save_file(tensors[name], folder / name / "adapter_model.safetensors")
        (folder / name / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": MODULES}
        ))  # fmt: skip
    return peft.eval(), [folder / name for name in names]


def prompts_of(rows: int, context: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(10, 31990, (rows, context), generator=generator)


@torch.inference_mode()
def decode(peft, ids: torch.Tensor, names: list[str], steps: int) -> tuple[list, list[float]]:
    """Greedy tokens [rows][steps] and the seconds of each step after the first."""
    kwargs = {"use_cache": True, "adapter_names": names}
    out = peft(input_ids=ids.cuda(), logits_to_keep=1, **kwargs)
    tokens, seconds = [], []
    for _ in range(steps):
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        tokens.append(token)
        if len(tokens) == steps:
            break
        torch.cuda.synchronize()
        begin = time.perf_counter()
        out = peft(input_ids=token, past_key_values=out.past_key_values, **kwargs)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return torch.cat(tokens, 1).tolist(), seconds


def names_of(rows: int, adapters: int) -> list[str]:
    return [f"a{row % adapters}" if adapters else "__base__" for row in range(rows)]


def start_bench(args, model: Path, adapters: list[Path], extra: list[str]) -> subprocess.Popen:
    command = [args.bench.resolve(), "step", "--model", model, "--device", "cuda", "--context", args.context]
    for folder in adapters:
        command += ["--adapter", folder]
    return subprocess.Popen([str(c) for c in command + extra], stdout=subprocess.DEVNULL)


def wait(process: subprocess.Popen) -> None:
    if process.wait() != 0:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def our_medians(args, model: Path, adapters: list[Path], scratch: Path) -> dict[str, float]:
    out = scratch / "ours.json"
    extra: list = ["--dtype", "bf16", "--steps", 24, "--rounds", 3, "--out", out]
    for rows, count, _ in CASES:
        extra += ["--case", f"{rows}x{count}"]
    wait(start_bench(args, model, adapters, extra))
    return {e["case"]: e["value"] for e in json.loads(out.read_text())}


def start_tokens(args, model: Path, adapters: list[Path], scratch: Path, rows: int, count: int):
    """Our greedy tokens in f32: the process, and the file that it writes."""
    prompts, out = scratch / f"prompts{rows}.json", scratch / f"tokens{rows}.json"
    prompts.write_text(json.dumps(prompts_of(rows, args.context).tolist()))
    process = start_bench(args, model, adapters[:count], [
        "--dtype", "f32", "--adapters", count, "--steps", args.tokens,
        "--prompts", prompts, "--tokens-out", out,
    ])  # fmt: skip
    return process, out


def time_peft(args, peft) -> dict[tuple[int, int], float]:
    """Milliseconds a step, bf16; base rows as well."""
    found = {}
    for rows, count, _ in CASES:
        for adapters in (0, count):
            ids, names = prompts_of(rows, args.context), names_of(rows, adapters)
            _, seconds = decode(peft, ids, names, args.steps + 2)
            found[rows, adapters] = statistics.median(seconds[1:]) * 1e3
            print(f"PEFT {rows} rows {adapters} adapters: {found[rows, adapters]:.1f} ms", flush=True)
    return found


def main() -> None:
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found: list[dict] = []

    def keep(case: str, value: float, unit: str, better: str, **more) -> None:
        found.append({"case": case, "value": round(value, 3), "better": better, "unit": unit} | more)
        print(f"{case:60} {value:9.3f} {unit}", flush=True)

    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        scratch = Path(name)
        model, writer = make_model(scratch / "model")
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{parameters / 1e9:.2f} B parameters", flush=True)
        peft, adapters = add_adapters(model, scratch / "adapters", max(c for _, c, _ in CASES))
        writer.join()
        peft_ms = time_peft(args, peft)
        ours_ms = our_medians(args, scratch / "model", adapters, scratch)
        # No more is timed: both sides run at once.
        ours = {
            (rows, count): start_tokens(args, scratch / "model", adapters, scratch, rows, count)
            for rows, count, _ in CASES
        }
        peft.float()
        theirs = {
            (rows, count): decode(peft, prompts_of(rows, args.context), names_of(rows, count),
                                  args.tokens)[0]
            for rows, count, _ in CASES
        }  # fmt: skip
        for rows, count, bound in CASES:
            case = f"rows={rows} adapters={count} r={RANK} context={args.context}"
            base = f"decode rows={rows} context={args.context} dtype=bf16"
            ours_step = ours_ms[f"{base} adapters={count}, median"]
            keep(f"PEFT bf16, {case}", peft_ms[rows, count], "ms", "lower")
            keep(f"PEFT bf16, base rows={rows}", peft_ms[rows, 0], "ms", "lower")
            keep(f"ours bf16, {case}", ours_step, "ms", "lower")
            keep(f"ours bf16, base rows={rows}", ours_ms[f"{base} base, median"], "ms", "lower")
            keep(f"tokens/s over PEFT, {case}", peft_ms[rows, count] / ours_step, "ratio", "higher",
                 goal=6, bound=bound)  # fmt: skip
            process, file = ours[rows, count]
            wait(process)
            mine = json.loads(file.read_text())
            pairs = [(a, b) for m, t in zip(mine, theirs[rows, count]) for a, b in zip(m, t)]
            same = sum(a == b for a, b in pairs) / len(pairs)
            keep(f"equal greedy tokens in f32, {case}", same, "ratio", "higher", goal=6, bound=1.0)
    common = {
        "machine": torch.cuda.get_device_name().removeprefix("NVIDIA "),
        "date": date.today().isoformat(), "commit": args.commit,
        "command": "tests/perf/peft_gpu.py --bench lora-bench --out OUT",
    }  # fmt: skip
    lines = ",\n".join(json.dumps(e | common) for e in found)
    (args.out / "gpu-vs-peft.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
