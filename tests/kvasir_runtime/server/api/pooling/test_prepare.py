"""What a body means: limits, bounds, and that whatever a client sends ends in work or in a refusal with a 4xx."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import tiny_tokenizer
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.pooling import protocol
from kvasir_runtime.frontend.pooling.capabilities import Capabilities, EmbeddingCapability, ScoringCapability
from kvasir_runtime.server.api.pooling import prepare
from kvasir_runtime.wire import EngineOutput, PoolingConfig

EMBEDS = EmbeddingCapability(kind="mean", normalize=True, size=4, shortens=True)
SCORES = {
    "label": ScoringCapability(kind="label", pooling=PoolingConfig(kind="labels")),
    "judgement": ScoringCapability(kind="judgement", pooling=PoolingConfig(kind="tokens", token_ids=(1, 2))),
    "similarity": ScoringCapability(kind="similarity", pooling=PoolingConfig(kind="mean")),
}
LEAST = {
    prepare.embeddings: {"model": "m", "input": "x"},
    prepare.ranking: {"query": "x", "documents": ["y"]},
    prepare.scores: {"text_1": "x", "text_2": "y"},
}
NAMES = sorted(
    {field for kind in (protocol.EmbeddingBody, protocol.RerankBody, protocol.ScoreBody) for field in kind.model_fields}
    | {*protocol.HARMLESS}
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["text", "type", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def served(scoring="label", longest=512):
    able = Capabilities(embedding=EMBEDS, scoring=SCORES[scoring])
    return ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(), max_context=longest, capabilities=able)


def events(*vectors):
    return [EngineOutput(request_id="", finish_reason="stop", pooled=struct.pack(f"<{len(v)}f", *v)) for v in vectors]


@settings(max_examples=300, deadline=None)
@given(
    means=st.sampled_from(list(LEAST)),
    scoring=st.sampled_from(list(SCORES)),
    body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5),
    valid=st.booleans(),
)
def test_whatever_is_sent_ends_in_work_or_a_refusal(means, scoring, body, valid):
    whole = {**body, **LEAST[means]} if valid else {**LEAST[means], **body}
    status, made = 200, None
    try:
        made = means(json.dumps(whole).encode(), served(scoring))
    except Refused as refused:
        status = refused.error.status
    assert status == 200 if made is not None else 400 <= status < 500
    if made is None:
        return
    assert made.requests
    assert all(0 < len(request.prompt) <= 512 and request.pooling is not None for request in made.requests)
    json.loads(made.finish(events(*[(1.0, 2.0, 3.0, 4.0)] * len(made.requests)), 1))


def test_a_query_is_not_multiplied_beyond_the_bound():
    body = {"query": "ab " * 2000, "documents": ["y"] * 1024}
    with pytest.raises(Refused, match="more than 1048576 tokens together"):
        prepare.ranking(json.dumps(body).encode(), served(longest=8192))


def test_scores_are_one_with_many_or_pair_by_pair():
    many = prepare.scores(b'{"text_1": "a", "text_2": ["b", "c"]}', served())
    assert [item["score"] for item in json.loads(many.finish(events((0.0,), (100.0,)), 1))["data"]] == [0.5, 1.0]
    alone = served("similarity")
    pairs = prepare.scores(b'{"text_1": ["a", "b"], "text_2": ["c", "d"]}', alone)
    assert len(pairs.requests) == 4
    found = json.loads(pairs.finish(events((1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.0)), 7))
    assert ([item["score"] for item in found["data"]], found["created"]) == ([1.0, 0.0], 7)
    with pytest.raises(Refused, match="2 text_1 for 3 text_2"):
        prepare.scores(b'{"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}', served())


def test_equal_scores_keep_the_order_of_the_documents():
    made = prepare.ranking(b'{"query": "a", "documents": ["b", "c", "d"], "top_n": 0}', served())
    found = json.loads(made.finish(events((1.0,), (2.0,), (1.0,)), 1))["results"]
    assert [item["index"] for item in found] == [1, 0, 2]


@pytest.mark.parametrize(("dimensions", "words"), [(5, "at most 4"), (3, None), (4, None)])
def test_dimensions_are_those_that_there_are(dimensions, words):
    raw = json.dumps({"model": "m", "input": "a", "dimensions": dimensions}).encode()
    if words:
        with pytest.raises(Refused, match=words):
            prepare.embeddings(raw, served())
        return
    (item,) = json.loads(prepare.embeddings(raw, served()).finish(events((3.0, 4.0, 0.0, 9.0)), 1))["data"]
    assert len(item["embedding"]) == dimensions


def test_a_judgement_is_cut_in_the_document_alone():
    body = {"query": "q", "documents": ["word " * 400], "truncate_prompt_tokens": 400, "instruction": "find"}
    made = prepare.ranking(json.dumps(body).encode(), served("judgement", 4096))
    text = tiny_tokenizer.tokenizer().decode(made.requests[0].prompt, special=True)
    assert len(made.requests[0].prompt) == 400
    assert "<Instruct>: find\n<Query>: q\n<Document>: word word" in text
    assert text.endswith("<think>\n\n</think>\n\n")
