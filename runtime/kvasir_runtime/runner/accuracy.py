"""How much quantized weights or caches change answers: logits of the same texts, plain and in each variant.

A process of its own: python -m kvasir_runtime.runner.accuracy, with an AccuracyJob on standard input; one line of JSON
(Deviation) per variant on standard output, as soon as it is computed. Started by `kvasir bench --accuracy`.
"""

import math
import sys
from collections.abc import Iterator, Sequence

import msgspec
import torch
from torch import Tensor

from kvasir_api.options import ServeOptions
from kvasir_runtime.accuracy_messages import AccuracyJob, Deviation
from kvasir_runtime.errors import StartError
from kvasir_runtime.runner.startup.build import build

ROWS = 64
"""Distributions compared at a time: in float64 they are large."""


def logits(options: ServeOptions, texts: Sequence[Sequence[int]]) -> tuple[list[Tensor], int]:
    """(tokens, vocab) float32 for each text, computed by an engine with these options; and the bytes of its weights."""
    runner = build(options, lambda _: None)
    return [runner.logits(tuple(text)) for text in texts], runner.facts.weights_bytes


def deviation(name: str, base: Sequence[Tensor], other: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> Deviation:
    """Compare next-token distributions at every position of every text.

    KL(base || other) in nats; perplexity of the texts' own next tokens, which the last position of a text has none of.
    """
    agreed, divergences, losses, next_tokens = 0, [0.0], [0.0, 0.0], 0
    for before, after, text in zip(base, other, texts, strict=True):
        for first in range(0, len(text), ROWS):
            rows = slice(first, first + ROWS)
            p, q = (part[rows].double().log_softmax(dim=1) for part in (before, after))
            agreed += int((p.argmax(dim=1) == q.argmax(dim=1)).sum())
            divergences += (p.exp() * (p - q)).sum(dim=1).clamp(min=0.0).tolist()
            wanted = torch.tensor(list(text[first + 1 : first + 1 + ROWS]))[:, None]
            for place, part in enumerate((p, q)):
                losses[place] -= float(part[: wanted.shape[0]].gather(1, wanted).sum())
            next_tokens += wanted.shape[0]
    tokens = sum(len(text) for text in texts)
    perplexities = [math.exp(loss / max(next_tokens, 1)) for loss in losses]
    return Deviation(
        name=name,
        tokens=tokens,
        top1_agreement_fraction=agreed / tokens,
        mean_kl=sum(divergences) / tokens,
        max_kl=max(divergences),
        base_perplexity=perplexities[0],
        perplexity=perplexities[1],
    )


def deviations(job: AccuracyJob) -> Iterator[Deviation]:
    """One per variant, the base first, which deviates by 0 and shows its own perplexity and bytes."""
    base, base_bytes = logits(_options(job, {}), job.texts)
    yield msgspec.structs.replace(deviation(job.base_name, base, base, job.texts), weights_bytes=base_bytes)
    for name, changes in job.variants:
        other, weights_bytes = logits(_options(job, changes), job.texts)
        yield msgspec.structs.replace(deviation(name, base, other, job.texts), weights_bytes=weights_bytes)


def _options(job: AccuracyJob, changes: dict[str, str]) -> ServeOptions:
    longest = max(len(text) for text in job.texts)
    return ServeOptions.model_validate(
        {
            "model": job.model,
            "kv_cache_tokens": -(-longest // 16) * 16,
            "max_model_len": longest,
            "max_sequences": 1,
            **job.options,
            **changes,
        }
    )


def main() -> int:
    """The exit code: 1 with one line on standard error where the model cannot be served."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=AccuracyJob)
    try:
        for found in deviations(job):
            sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
            sys.stdout.buffer.flush()
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
