"""The documents of answers with vectors, rankings and scores, as they are encoded and as /openapi.json shows them."""

from typing import Literal

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens of all prompts together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one input: numbers, or base64 of float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's answer."""

    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class RankedDocument(msgspec.Struct, frozen=True):
    """What was ranked."""

    text: str


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """One document by its place in the request."""

    index: int
    relevance_score: float
    document: RankedDocument | msgspec.UnsetType = msgspec.UNSET


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Cohere's and Jina's answer, the best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: Usage


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreUsage(msgspec.Struct, frozen=True):
    """Tokens of all prompts together; none is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's answer, in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: ScoreUsage
