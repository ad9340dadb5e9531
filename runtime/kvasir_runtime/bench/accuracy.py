"""`kvasir bench --accuracy MODEL`: what fewer bits cost, in agreement, divergence and perplexity, without a server.

Tokenizes a text here and has a process with torch compute the logits (runner.accuracy, never imported). It decides what
is compared with what, and how it is shown.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from kvasir_api import hf_config
from kvasir_runtime import gguf, source
from kvasir_runtime.accuracy_messages import AccuracyJob, Deviation
from kvasir_runtime.bench.sample_text import TEXT
from kvasir_runtime.errors import StartError
from kvasir_runtime.frontend import tokenizer
from kvasir_runtime.tokenizer_files.files import read_json

COMMAND: Final = (sys.executable, "-m", "kvasir_runtime.runner.accuracy")
BASE: Final = {"dtype": "bfloat16", "quantization": "none", "kv_cache_dtype": "auto"}
VARIANTS: Final = (
    ("float32", {"dtype": "float32"}),
    ("fp8 weights", {"quantization": "fp8"}),
    ("int8 weights", {"quantization": "int8"}),
    ("int4 weights", {"quantization": "int4"}),
    ("int8 KV", {"kv_cache_dtype": "int8"}),
    ("int8 weights and KV", {"quantization": "int8", "kv_cache_dtype": "int8"}),
)
"""float32 has no fewer bits: its row shows how far bfloat16 is from exact arithmetic, as a scale for the others."""
PIECE_TOKENS: Final = 256


AS_STORED: Final = ("as in the file", {"quantization": "auto"})


class AccuracyError(Exception):
    """Nothing could be compared; one line with the reason."""


def pieces(ids: tuple[int, ...], num_tokens: int) -> list[list[int]]:
    """The first num_tokens of a text in pieces of at most PIECE_TOKENS; a last one of a single token is left out."""
    taken = ids[:num_tokens]
    found = [list(taken[first : first + PIECE_TOKENS]) for first in range(0, len(taken), PIECE_TOKENS)]
    return [piece for piece in found if len(piece) > 1]


def job(model: str, text: str, num_tokens: int) -> AccuracyJob:
    """What the process computes. Raises AccuracyError for a model that is not there, or a text without two tokens."""
    try:
        folder = source.resolve(model)
        ids = tokenizer.load(folder).encode(text, special=False, limit=10_000_000)
    except (StartError, tokenizer.PromptTooLong) as error:
        raise AccuracyError(str(error)) from error
    texts = pieces(ids, num_tokens)
    if not texts:
        raise AccuracyError("the text has less than two tokens")
    variants = [AS_STORED, *VARIANTS] if _is_short(folder) else list(VARIANTS)
    return AccuracyJob(model=str(folder), options=dict(BASE), base_name="bfloat16", texts=texts, variants=variants)


def _is_short(model: Path) -> bool:
    """Whether a checkpoint has numbers in fewer bits, which the base decodes."""
    if gguf.is_gguf(model):
        return True
    try:
        beside = read_json(model / hf_config.QUANTIZATION_FILE, missing_ok=True)
        document = hf_config.with_quantization(read_json(model / "config.json"), beside)
    except StartError:
        return False  # what is wrong with it is said where it is loaded
    return hf_config.flattened(document).get("quantization_config") is not None


def measured(job: AccuracyJob, command: tuple[str, ...] = COMMAND) -> Iterator[Deviation]:
    """Deviations as they come, the base first. command: replaced by tests. Raises AccuracyError."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(msgspec.json.encode(job))
            process.stdin.close()
            for line in process.stdout:
                yield msgspec.json.decode(line, type=Deviation)
            lines = process.stderr.read().decode(errors="replace").strip().splitlines()
            if process.wait():
                raise AccuracyError(lines[-1] if lines else f"the process ended with code {process.returncode}")
        finally:
            process.kill()


def table(found: list[Deviation]) -> str:
    """One line for each variant."""
    base = found[0]
    lines = [
        f"{base.tokens:,} tokens; compared with {base.name}, whose perplexity is {base.perplexity:,.3f}",
        f"{'':<22}{'weights MiB':>12}{'top-1 agrees':>14}{'mean KL':>12}{'max KL':>12}{'perplexity':>12}",
    ]
    for each in found:
        change = each.perplexity / each.base_perplexity - 1
        lines.append(
            f"{each.name:<22}{each.weights_bytes / 2**20:>12,.1f}{each.top1_agreement_fraction:>13.2%}"
            f" {each.mean_kl:>12.2e}{each.max_kl:>12.2e}{change:>+11.2%}"
        )
    return "\n".join(lines)


def document(job: AccuracyJob, found: list[Deviation]) -> dict[str, Any]:
    """The same for programs. KL in nats."""
    return {"model": job.model, "base": job.base_name, "variants": [msgspec.structs.asdict(each) for each in found]}


def text_of(path: str | None) -> str:
    """A file's text, or the built-in one. Raises AccuracyError."""
    try:
        return Path(path).read_text(encoding="utf-8") if path else TEXT
    except (OSError, UnicodeDecodeError) as error:
        raise AccuracyError(f"{path}: {error}") from error
