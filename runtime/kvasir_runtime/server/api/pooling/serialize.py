"""Writes the documents of answers with vectors, rankings and scores. Called in worker threads, as vectors are long."""

from collections.abc import Iterable, Sequence

import msgspec

from kvasir_runtime.frontend.pooling import vectors
from kvasir_runtime.frontend.pooling.prepare import Prompts
from kvasir_runtime.frontend.pooling.protocol import EmbeddingBody, RerankBody
from kvasir_runtime.server.api.pooling.protocol import (
    EmbeddingItem,
    Ranked,
    RankedDocument,
    Ranking,
    Score,
    Scores,
    ScoreUsage,
    Usage,
)


def embeddings(body: EmbeddingBody, prompts: Prompts, found: Iterable[vectors.Vector], *, model: str) -> bytes:
    """What is written is an Embeddings, its items one by one, so that other threads get their turn in between."""
    items = []
    for index, vector in enumerate(found):
        written = vectors.as_base64(vector) if body.encoding_format == "base64" else vector.tolist()
        items.append(msgspec.Raw(msgspec.json.encode(EmbeddingItem(index=index, embedding=written))))
    return msgspec.json.encode({"object": "list", "data": items, "model": model, "usage": _usage(prompts)})


def ranking(body: RerankBody, prompts: Prompts, found: Sequence[float], *, answer_id: str, model: str) -> bytes:
    """The best first; equal scores keep the order of the documents. found: the score of each document."""
    best = sorted(range(len(found)), key=lambda index: (-found[index], index))[: body.top_n or None]
    results = [
        Ranked(
            index=index,
            relevance_score=found[index],
            document=RankedDocument(body.documents[index]) if body.return_documents else msgspec.UNSET,
        )
        for index in best
    ]
    return msgspec.json.encode(Ranking(id=answer_id, model=model, results=results, usage=_usage(prompts)))


def scores(prompts: Prompts, found: Sequence[float], *, answer_id: str, model: str, created: int) -> bytes:
    """In the order of the pairs. created: unix seconds."""
    usage = _usage(prompts)
    document = Scores(
        id=answer_id,
        created=created,
        model=model,
        data=[Score(index=index, score=score) for index, score in enumerate(found)],
        usage=ScoreUsage(usage.prompt_tokens, usage.total_tokens),
    )
    return msgspec.json.encode(document)


def _usage(prompts: Prompts) -> Usage:
    count = sum(map(len, prompts))
    return Usage(count, count)
