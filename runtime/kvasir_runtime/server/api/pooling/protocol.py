"""Paths, and the documents of answers with vectors, rankings and scores, as /openapi.json shows them.

Bodies of requests are in frontend/pooling/protocol.py, because the offline engine reads them too.
"""

from typing import Any, Final, Literal

import msgspec

RERANK_PATHS: Final = ("/rerank", "/v1/rerank", "/v2/rerank")
SCORE_PATHS: Final = ("/score", "/v1/score")
OUTSIDE_V1: Final = tuple(path for path in (*RERANK_PATHS, *SCORE_PATHS) if not path.startswith("/v1/"))
"""Paths that require a key though they are not below /v1."""


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


ANSWERS: Final[dict[str, Any]] = {
    "/v1/embeddings": Embeddings,
    **dict.fromkeys(RERANK_PATHS, Ranking),
    **dict.fromkeys(SCORE_PATHS, Scores),
}
"""The document with which each path answers."""
