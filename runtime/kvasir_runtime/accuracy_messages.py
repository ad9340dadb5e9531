"""Messages between a measurement of accuracy and the process that computes it, as JSON lines."""

from typing import Any

import msgspec


class AccuracyJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, which the process reads from its standard input.

    model: an existing directory or file. options: fields of ServeOptions for all runs. texts: token ids. variants: a
    name and the options that it changes; the base changes none.
    """

    model: str
    options: dict[str, Any]
    base_name: str
    texts: list[list[int]]
    variants: list[tuple[str, dict[str, str]]]


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """How far a variant's next-token distributions are from the base's, over all positions of the texts.

    mean_kl, max_kl: KL(base || variant) in nats. top1_agreement_fraction: positions with the same likeliest token.
    """

    name: str
    tokens: int
    top1_agreement_fraction: float
    mean_kl: float
    max_kl: float
    base_perplexity: float
    perplexity: float
    weights_bytes: int = 0
