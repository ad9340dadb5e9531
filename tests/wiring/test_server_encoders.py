"""Encoders over HTTP, from the real engine: an embedder of unigrams, a decoder that sees both ways with layers behind
pooling, a reranker of word pieces; transformers judges.

OpenAI's own client asks for vectors; pairs go to the routes of rerankings and scores.
"""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest
import torch
from tokenizers import Tokenizer
from torch import nn

from fakes import encoder_checkpoints
from fakes.api_process import api_process
from fakes.encoder_checkpoints import LONGEST, hidden_of, labels_of

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
ARGS = ("--device", "cpu", "--dtype", "float32")
TEXTS = [
    "a search engine ranks documents",
    "eine Einbettung ist ein Vektor",
    "pods",
    "the operator scales replicas of it",
]
LONG = "documents answer a query " * 60

pytestmark = pytest.mark.xdist_group("server-encoders")


@pytest.fixture(scope="module")
def judges(tmp_path_factory):
    """Folder and judge of the embedder and of the reranker."""
    root: Path = tmp_path_factory.mktemp("encoders")
    embedder = encoder_checkpoints.write(root / "embed", "xlm-roberta", head="ForMaskedLM")
    prompts = {"query": "query: ", "passage": "passage: "}
    encoder_checkpoints.sentence_transformers(root / "embed", "mean_tokens", prompts=prompts, longest=64)
    ranker = encoder_checkpoints.write(root / "rank", "bert", head="ForSequenceClassification")
    behind = encoder_checkpoints.write(root / "dense", "embedding-gemma")
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 20, bias=False), nn.Identity())
    encoder_checkpoints.sentence_transformers(
        root / "dense", "mean_tokens", longest=64, normalize=False, dense=list(dense)
    )
    return {
        "embed": (root / "embed", embedder),
        "rank": (root / "rank", ranker),
        "dense": (root / "dense", behind),
        "layers": (root, dense),
    }


@pytest.fixture(scope="module")
def embed(judges):
    with api_process(judges["embed"][0], *ARGS, "--api-key", "secret", command=REAL) as running:
        yield running


@pytest.fixture(scope="module")
def rank(judges):
    with api_process(judges["rank"][0], *ARGS, command=REAL) as running:
        yield running


@pytest.fixture
def client(embed):
    with openai.OpenAI(base_url=embed.base_url, api_key="secret", max_retries=0) as made:
        yield made


def tokenizer_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def wanted(judges, text: str) -> np.ndarray:
    folder, judge = judges["embed"]
    mean = hidden_of(judge, tokenizer_of(folder).encode(text).ids).mean(dim=0).numpy()
    return mean / np.linalg.norm(mean)


def logit(judges, query: str, document: str) -> float:
    folder, judge = judges["rank"]
    joined = tokenizer_of(folder).encode(query, document)
    return float(labels_of(judge, joined.ids, joined.type_ids.index(1))[0])


def test_openais_client_gets_what_sentence_transformers_would_give(judges, client):
    answer = client.embeddings.create(model="embed", input=TEXTS, encoding_format="float")
    for item, text in zip(answer.data, TEXTS, strict=True):
        np.testing.assert_allclose(item.embedding, wanted(judges, text), atol=1e-4)
    tokenizer = tokenizer_of(judges["embed"][0])
    assert answer.usage.prompt_tokens == sum(len(tokenizer.encode(text).ids) for text in TEXTS)


def test_a_prompt_by_name_is_put_before_texts(judges, client):
    (item,) = client.embeddings.create(model="embed", input=TEXTS[0], extra_body={"prompt_name": "query"}).data
    np.testing.assert_allclose(item.embedding, wanted(judges, f"query: {TEXTS[0]}"), atol=1e-4)
    with pytest.raises(openai.BadRequestError, match="expected one of passage, query") as caught:
        client.embeddings.create(model="embed", input=TEXTS[0], extra_body={"prompt_name": "other"})
    assert caught.value.param == "prompt_name"


def test_many_clients_at_once_get_the_same_as_one(judges, client):
    texts = [f"{text} {'replicas ' * (number % 7)}" for number, text in enumerate(TEXTS * 6)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda text: client.embeddings.create(model="embed", input=text).data[0], texts))
    together = client.embeddings.create(model="embed", input=texts).data
    for text, one, other in zip(texts, found, together, strict=True):
        assert one.embedding == other.embedding
        np.testing.assert_allclose(one.embedding, wanted(judges, text), atol=1e-4)


def test_a_text_longer_than_the_checkpoint_says_is_refused_or_cut(judges, client):
    with pytest.raises(openai.BadRequestError, match="64 tokens") as caught:
        client.embeddings.create(model="embed", input=LONG)
    assert caught.value.code == "context_length_exceeded"
    cut = client.embeddings.create(model="embed", input=LONG, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == 64


def test_nothing_is_generated_and_nothing_is_kept(embed, client):
    with pytest.raises(openai.BadRequestError, match="cannot generate text"):
        client.chat.completions.create(model="embed", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.BadRequestError, match="cannot generate text"):
        client.completions.create(model="embed", prompt="a")
    embed.until("nothing is pinned", lambda: embed.state()["kv"]["pinned_tokens"] == 0)
    state = embed.state()
    assert (state["kv"]["capacity_tokens"], state["kv"]["capacity_bytes"], state["kv"]["cached_tokens"]) == (
        256 * 64,
        0,
        0,
    )
    assert state["max_model_len"] == 64
    assert "KV cache    none" in embed.output()


def test_a_cross_encoder_scores_pairs_of_two_types(judges, rank):
    query, documents = TEXTS[0], TEXTS[1:]
    want = [1 / (1 + math.exp(-logit(judges, query, document))) for document in documents]
    scored = rank.ask("/v1/score", {"model": "rank", "text_1": query, "text_2": documents}).json
    assert [item["score"] for item in scored["data"]] == pytest.approx(want, abs=1e-4)
    ranked = rank.ask("/v1/rerank", {"model": "rank", "query": query, "documents": documents}).json["results"]
    assert [item["index"] for item in ranked] == sorted(range(3), key=lambda index: -want[index])
    assert [item["relevance_score"] for item in ranked] == pytest.approx(sorted(want, reverse=True), abs=1e-4)


def test_vectors_go_through_the_layers_behind_pooling(judges):
    (folder, judge), (_, dense) = judges["dense"], judges["layers"]
    with api_process(folder, *ARGS, command=REAL) as running:
        asked = [running.ask("/v1/embeddings", {"model": "dense", "input": texts}) for texts in (TEXTS, *TEXTS)]
    together, *alone = [[item["embedding"] for item in answer.json["data"]] for answer in asked]
    assert together == [vector for (vector,) in alone]
    for text, found in zip(TEXTS, together, strict=True):
        mean = hidden_of(judge, tokenizer_of(folder).encode(text).ids).mean(dim=0)
        with torch.inference_mode():
            np.testing.assert_allclose(found, dense(mean).numpy(), atol=1e-5)


def test_a_pair_that_is_too_long_is_refused_or_its_document_cut(judges, rank):
    body = {"model": "rank", "query": TEXTS[0], "documents": [LONG]}
    refused = rank.ask("/rerank", body)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert str(LONGEST) in refused.error["message"]
    assert rank.ask("/rerank", body | {"truncate_prompt_tokens": -1}).status == 200
    assert rank.ask("/v1/embeddings", {"model": "rank", "input": "a"}).status == 400
