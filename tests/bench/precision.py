"""What fewer bits cost a model's distributions: `python -m bench.precision [MODEL]`, with PYTHONPATH=tests.

Rewrites a checkpoint in full precision in the formats that the hub has, each number rounded to the nearest (no
calibration, which the tools of GPTQ and AWQ have, and lose less by), and compares the logits of a text with those of
the model in float32: decoded (`--quantization none`), and as they are served (`auto`). Then what caches in fewer
bits cost it, beside weights and activations in float32, so that nothing else is rounded.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from fakes import (
    bitsandbytes_checkpoints,
    e2m1_checkpoints,
    fp8_checkpoints,
    hqq_checkpoints,
    integer_checkpoints,
    sparse_checkpoints,
)
from fakes.by_hand import runner_of
from fakes.integer_checkpoints import Style
from kvasir_api.options import ServeOptions
from kvasir_runtime.accuracy_messages import Deviation
from kvasir_runtime.bench import accuracy
from kvasir_runtime.kernels import kv_quant
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.runner.accuracy import deviation, logits

ROOT = Path(__file__).parents[2]
MODEL, TEXT = ROOT / "operator/kvasir_local/demo/model", ROOT / "docs/faq.md"
TOKENS = 2048
OURS = ("fp8", "int8", "int4")
CACHES = {"bfloat16": torch.bfloat16, "int8": torch.int8, "fp8": kv_quant.FLOAT8, "int4": kv_quant.INT4}
STORED: dict[str, Callable[[Path], object]] = {
    **{
        f"fp8, a scale for each {of}": partial(fp8_checkpoints.convert, style=style)
        for of, style in (("matrix", "tensor"), ("row", "channel"), ("block of 128 × 128", "block"))
    },
    **{
        name: partial(integer_checkpoints.convert, style=style)
        for name, style in {
            "W8A8, a scale for each row": Style(method="int8", bits=8, group=0),
            "GPTQ 8 bits, groups of 64": Style(method="gptq", bits=8, group=64),
            "GPTQ 4 bits, groups of 64, symmetric": Style(method="gptq", group=64),
            "GPTQ 4 bits, groups of 64, `desc_act`": Style(method="gptq", group=64, act_order=True),
            "AWQ 4 bits, groups of 64": Style(method="awq", group=64, symmetric=False),
            "AWQ 4 bits, groups of 32": Style(method="awq", group=32, symmetric=False),
            "W4A16, a scale for each row": Style(method="packed", group=0),
            "W4A16, groups of 32": Style(method="packed", group=32),
        }.items()
    },
    "HQQ 4 bits, groups of 64": partial(hqq_checkpoints.convert, style=hqq_checkpoints.Style()),
    "HQQ 3 bits, groups of 64": partial(hqq_checkpoints.convert, style=hqq_checkpoints.Style(bits=3)),
    "bitsandbytes int8": partial(bitsandbytes_checkpoints.convert, style="int8"),
    "NF4, blocks of 64": partial(bitsandbytes_checkpoints.convert, style="nf4"),
    "MXFP4, groups of 32": partial(e2m1_checkpoints.convert, style="mxfp4"),
    "NVFP4, groups of 16": partial(e2m1_checkpoints.convert, style="nvfp4"),
    "2:4 sparse, by magnitude": sparse_checkpoints.convert,
}


def main(model: Path) -> None:
    """Print a row for each format."""
    texts = accuracy.job(str(model), TEXT.read_text(), TOKENS).texts
    base, base_bytes = logits(options(model, texts, dtype="float32", quantization="none"), texts)
    print(f"{'':52}{'weights MiB':>12}{'top-1 agrees':>14}{'mean KL':>12}{'perplexity':>12}")

    def row(name: str, folder: Path, quantization: str, dtype: str = "bfloat16") -> None:
        other, held = logits(options(folder, texts, dtype=dtype, quantization=quantization), texts)
        show(name, deviation(name, base, other, texts), f"{held / 2**20:.2f}")

    def show(name: str, found: Deviation, held: str = "") -> None:
        change = found.perplexity / found.base_perplexity - 1
        print(f"{name:52}{held:>12}{found.top1_agreement_fraction:14.2%}{found.mean_kl:12.2e}{change:+12.2%}")

    print(f"{'float32':52}{base_bytes / 2**20:12.2f}")
    row("bfloat16", model, "none")
    for quantization in OURS:
        row(f"--quantization {quantization}", model, quantization)
    for name, convert in STORED.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(shutil.copytree(model, Path(temporary) / "model"))
            convert(folder)
            row(f"{name}, decoded", folder, "none", "float32")
            row(name, folder, "auto")
    for name, cached in CACHES.items():
        # fp8 is for cards: the references compute it here too.
        runner = runner_of(model, ops=REFERENCE, cache_dtype=cached)
        other = [runner.logits(tuple(text)) for text in texts]
        show(f"KV cache in {name}", deviation(name, base, other, texts))


def options(model: Path, texts: list[list[int]], *, dtype: str, quantization: str) -> ServeOptions:
    """Of one engine that computes these texts."""
    longest = max(len(text) for text in texts)
    sizes = {"kv_cache_tokens": -(-longest // 16) * 16, "max_model_len": longest, "max_sequences": 1}
    return ServeOptions.model_validate(
        {"model": str(model), "dtype": dtype, "quantization": quantization, "device": "cpu", **sizes}
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL)
