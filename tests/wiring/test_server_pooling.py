"""Embeddings, rerankings and scores over HTTP, from the real engine, judged by transformers and OpenAI's own client."""

import base64
import json
import math
import sys
from pathlib import Path

import numpy as np
import ollama
import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer, processors
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from fakes import checkpoints
from fakes.api_process import JSON, api_process
from fakes.checkpoints import Shape

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
ARGS = ("--kv-cache-tokens", "4096", "--device", "cpu", "--max-model-len", "256", "--max-batch-tokens", "64")
TEXTS = ["the operator watches the services", "a block of the cache is pinned, cached or free", "one step"]

pytestmark = pytest.mark.xdist_group("server-pooling")


def sentence_transformers(folder: Path, mode: str, *, normalize: bool) -> None:
    """The files that say how embeddings are made."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({mode: True, "word_embedding_dimension": 64}))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    matryoshka = {"is_matryoshka": True}
    checkpoints.write(root / "embed", Shape(family="qwen3", extra=matryoshka), head="Model", prefix=False)
    sentence_transformers(root / "embed", "pooling_mode_mean_tokens", normalize=True)
    # As those of real embedding models: the tokenizer ends every text with a special token.
    tokenizer = Tokenizer.from_file(str(root / "embed" / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(str(root / "embed" / "tokenizer.json"))
    checkpoints.write(root / "chat", Shape(family="qwen3"))
    checkpoints.write(root / "rank", Shape(family="qwen2"), head="ForSequenceClassification", labels=1)
    return root


@pytest.fixture(scope="module")
def embed(models):
    with api_process(models / "embed", *ARGS, "--api-key", "secret", command=REAL) as running:
        yield running


@pytest.fixture(scope="module")
def chat(models):
    with api_process(models / "chat", *ARGS, command=REAL) as running:
        yield running


@pytest.fixture(scope="module")
def rank(models):
    with api_process(models / "rank", *ARGS, command=REAL) as running:
        yield running


@pytest.fixture
def client(embed):
    with openai.OpenAI(base_url=embed.base_url, api_key="secret", max_retries=0) as made:
        yield made


def ids_of(folder: Path, *texts: str) -> list[int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*texts).ids


@torch.inference_mode()
def hidden_of(folder: Path, ids: list[int]) -> np.ndarray:
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].numpy()


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def wanted(folder: Path, text: str) -> np.ndarray:
    return hidden_of(folder, ids_of(folder, text)).mean(axis=0)


@pytest.mark.parametrize("encoding", ["float", "base64", openai.NOT_GIVEN])
def test_openais_client_gets_the_means_of_hidden_states(models, embed, encoding):
    # Its own types know no base64, which it requests when nothing is given, and decodes.
    strict, url = encoding == "float", embed.base_url
    with openai.OpenAI(base_url=url, api_key="secret", max_retries=0, _strict_response_validation=strict) as client:
        answer = client.embeddings.create(model="embed", input=TEXTS, encoding_format=encoding, user="somebody")
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert (
        answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(ids_of(models / "embed", t)) for t in TEXTS)
    )
    for item, text in zip(answer.data, TEXTS, strict=True):
        given = item.embedding
        vector = np.frombuffer(base64.b64decode(given), "<f4") if isinstance(given, str) else np.array(given)
        np.testing.assert_allclose(vector, unit(wanted(models / "embed", text)), atol=1e-4)


def test_ids_and_texts_give_the_same(models, client):
    ids = [ids_of(models / "embed", text) for text in TEXTS]
    texts = client.embeddings.create(model="embed", input=TEXTS).data
    for given in (client.embeddings.create(model="embed", input=ids).data, texts):
        for one, other in zip(given, texts, strict=True):
            np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-5)
    (alone,) = client.embeddings.create(model="embed", input=ids[0]).data
    np.testing.assert_allclose(alone.embedding, texts[0].embedding, atol=1e-5)


@pytest.fixture
def ollamas(embed):
    made = ollama.Client(embed.base_url.removesuffix("/v1"), headers={"authorization": "Bearer secret"})
    yield made
    made._client.close()


def test_ollamas_client_gets_vectors_of_length_1(models, ollamas):
    answer = ollamas.embed("embed:latest", TEXTS, keep_alive="5m")
    for vector, text in zip(answer.embeddings, TEXTS, strict=True):
        np.testing.assert_allclose(vector, unit(wanted(models / "embed", text)), atol=1e-4)
    assert answer.model == "embed:latest"
    assert answer.prompt_eval_count == sum(len(ids_of(models / "embed", text)) for text in TEXTS)
    assert answer.total_duration > 0
    assert ollamas.embed("embed", "").embeddings == []
    (short,) = ollamas.embed("embed", TEXTS[0], dimensions=16).embeddings
    np.testing.assert_allclose(short, unit(wanted(models / "embed", TEXTS[0])[:16]), atol=1e-4)


def test_ollamas_older_route_gives_them_as_they_are(models, ollamas):
    answer = ollamas.embeddings("embed", TEXTS[1])
    np.testing.assert_allclose(answer.embedding, wanted(models / "embed", TEXTS[1]), atol=1e-4)


def test_ollamas_texts_are_cut_unless_that_is_refused(ollamas, embed):
    long = "step " * 400
    assert ollamas.embed("embed", long).prompt_eval_count == 256
    for fields in ({"truncate": False}, {"options": {"num_ctx": 4096}}, {"dimensions": 9999}, {"input": 5}):
        with pytest.raises(ollama.ResponseError) as caught:
            ollamas._request_raw("POST", "/api/embed", json={"model": "embed", "input": long, **fields})
        assert caught.value.status_code == 400
    headers = {"authorization": "Bearer secret"}
    missing = embed.ask("/api/embed", {"model": "other", "input": []}, headers=headers)
    assert (missing.status, list(missing.json)) == (404, ["error"])


def test_dimensions_cut_and_normalise_again(models, client):
    (item,) = client.embeddings.create(model="embed", input=TEXTS[0], dimensions=16).data
    np.testing.assert_allclose(item.embedding, unit(wanted(models / "embed", TEXTS[0])[:16]), atol=1e-4)


def test_fields_of_vllm_have_their_effect(models, client):
    def one(**extra):
        return np.array(client.embeddings.create(model="embed", input=TEXTS[1], extra_body=extra).data[0].embedding)

    folder = models / "embed"
    ids = ids_of(folder, TEXTS[1])
    np.testing.assert_allclose(one(normalize=False), wanted(folder, TEXTS[1]), atol=1e-4)
    cut = unit(hidden_of(folder, [*ids[:6], 0]).mean(axis=0))
    np.testing.assert_allclose(one(truncate_prompt_tokens=7), cut, atol=1e-4)
    bare = unit(hidden_of(folder, ids[:-1]).mean(axis=0))
    np.testing.assert_allclose(one(add_special_tokens=False), bare, atol=1e-4)


def test_inputs_beyond_the_batch_come_back_in_order(embed, models):
    count = 300
    texts = [TEXTS[number % 3][: 5 + number % 20] for number in range(count)]
    body = {"model": "embed", "input": texts, "encoding_format": "base64"}
    answer = embed.ask("/v1/embeddings", body, headers={**JSON, "authorization": "Bearer secret"})
    assert answer.status == 200
    assert [item["index"] for item in answer.json["data"]] == list(range(count))
    for index in (0, 1, 299):
        vector = np.frombuffer(base64.b64decode(answer.json["data"][index]["embedding"]), "<f4")
        np.testing.assert_allclose(vector, unit(wanted(models / "embed", texts[index])), atol=1e-4)
    embed.until("nothing is pinned", lambda: embed.state()["kv"]["pinned_tokens"] == 0)


def test_long_texts_are_exact_over_chunks_and_refused_beyond_the_context(models, client):
    text = "the gateway chooses the pod that already holds the prefix " * 6
    assert len(ids_of(models / "embed", text)) > 64
    (item,) = client.embeddings.create(model="embed", input=text).data
    np.testing.assert_allclose(item.embedding, unit(wanted(models / "embed", text)), atol=1e-4)
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="embed", input=text * 20)
    assert caught.value.code == "context_length_exceeded"
    client.embeddings.create(model="embed", input=text * 20, extra_body={"truncate_prompt_tokens": -1})


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": []}, "input", "invalid_value"),
        ({"input": ""}, None, None),
        ({"input": [[]]}, "input", "invalid_value"),
        ({"input": [1, "a"]}, "input", "invalid_value"),
        ({"input": [5000]}, "input", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"input": "a", "dimensions": 65}, "dimensions", "invalid_value"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "truncate_prompt_tokens": 0}, None, "invalid_value"),
        ({"input": "a", "truncate_prompt_tokens": 9999, "model": "embed"}, None, None),
        ({"input": "a", "model": "other"}, None, "model_not_found"),
        ({"input": "a", "dimension": 3}, None, None),
    ],
)
def test_bad_bodies_are_refused_by_field(embed, body, param, code):
    answer = embed.ask("/v1/embeddings", {"model": "embed", **body}, headers={**JSON, "authorization": "Bearer secret"})
    if code is None:
        assert answer.status == 200
        return
    assert answer.status in {400, 404}
    assert answer.error["code"] == code
    assert param is None or answer.error["param"] == param


def test_prompts_of_vectors_are_counted_as_requests_without_an_answer(embed, client):
    def count(name):
        found = text_string_to_metric_families(embed.ask("/metrics").body.decode())
        return {
            sample.name: sample.value
            for family in found
            for sample in family.samples
            if sample.labels.get("finished_reason", "stop") == "stop"
        }[name]

    names = (
        "request_success_total",
        "request_prompt_tokens_sum",
        "request_generation_tokens_sum",
        "request_prefill_time_seconds_count",
    )
    before = [count(f"vllm:{name}") for name in names]
    used = client.embeddings.create(model="embed", input=TEXTS[:2]).usage.prompt_tokens
    after = [count(f"vllm:{name}") for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [2, used, 0, 2]
    embed.until("the log line", lambda: "/v1/embeddings" in embed.output())


def test_a_model_without_a_vocabulary_refuses_to_generate(client):
    with pytest.raises(openai.BadRequestError, match="cannot generate text"):
        client.completions.create(model="embed", prompt="a")
    with pytest.raises(openai.BadRequestError, match="cannot generate text"):
        client.chat.completions.create(model="embed", messages=[{"role": "user", "content": "a"}])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"])
def test_keys_are_required_on_every_path(embed, path):
    assert embed.ask(path, {"model": "embed", "input": "a"}).status == 401


def test_an_embedding_model_scores_by_similarity(embed, models):
    headers = {**JSON, "authorization": "Bearer secret"}
    body = {"model": "embed", "text_1": TEXTS[0], "text_2": TEXTS}
    answer = embed.ask("/v1/score", body, headers=headers).json
    vectors = [unit(wanted(models / "embed", text)) for text in TEXTS]
    assert [item["score"] for item in answer["data"]] == pytest.approx([vectors[0] @ v for v in vectors], abs=1e-4)
    assert {item["object"] for item in answer["data"]} == {"score"}
    assert answer["usage"]["completion_tokens"] == 0
    pairs = embed.ask("/score", {"text_1": TEXTS[:2], "text_2": TEXTS[1:]}, headers=headers).json
    assert [item["score"] for item in pairs["data"]] == pytest.approx(
        [vectors[0] @ vectors[1], vectors[1] @ vectors[2]], abs=1e-4
    )
    ranked = embed.ask(
        "/v2/rerank", {"model": "embed", "query": TEXTS[0], "documents": TEXTS, "top_n": 2}, headers=headers
    )
    found = ranked.json["results"]
    assert found[0]["index"] == 0
    assert found[0]["relevance_score"] == pytest.approx(1, abs=1e-5)
    assert len(found) == 2


def test_a_chat_model_embeds_the_last_token_and_still_generates(chat, models):
    answer = chat.ask("/v1/embeddings", {"model": "chat", "input": TEXTS[0]})
    want = unit(hidden_of(models / "chat", ids_of(models / "chat", TEXTS[0]))[-1])
    np.testing.assert_allclose(answer.json["data"][0]["embedding"], want, atol=1e-4)
    assert chat.ask("/v1/completions", {"model": "chat", "prompt": "the"}).status == 200
    refused = chat.ask("/v1/embeddings", {"model": "chat", "input": "a", "dimensions": 8})
    assert (refused.status, refused.error["param"]) == (400, "dimensions")
    refused = chat.ask("/score", {"text_1": "a", "text_2": "b"})
    assert refused.status == 400
    assert "--pooling last or mean" in refused.error["message"]


@torch.inference_mode()
def label_of(folder: Path, ids: list[int]) -> float:
    judge = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return float(judge(torch.tensor([ids]), use_cache=False).logits[0, 0])


def test_a_classification_head_ranks(rank, models):
    want = [1 / (1 + math.exp(-label_of(models / "rank", ids_of(models / "rank", TEXTS[0], text)))) for text in TEXTS]
    scored = rank.ask("/score", {"text_1": TEXTS[0], "text_2": TEXTS})
    assert [item["score"] for item in scored.json["data"]] == pytest.approx(want, abs=1e-4)
    ranked = rank.ask("/rerank", {"query": TEXTS[0], "documents": [{"text": t} for t in TEXTS]}).json
    assert [item["index"] for item in ranked["results"]] == sorted(range(3), key=lambda index: -want[index])
    assert ranked["results"][0]["document"] == {"text": TEXTS[ranked["results"][0]["index"]]}
    assert ranked["model"] == "rank"
    bare = rank.ask("/v1/rerank", {"query": "a", "documents": ["b"], "return_documents": False}).json
    assert set(bare["results"][0]) == {"index", "relevance_score"}
    cut = rank.ask("/rerank", {"query": TEXTS[0], "documents": TEXTS[1:2], "max_tokens_per_doc": 4}).json
    query, document = ids_of(models / "rank", TEXTS[0]), ids_of(models / "rank", TEXTS[1])
    assert cut["results"][0]["relevance_score"] == pytest.approx(
        1 / (1 + math.exp(-label_of(models / "rank", [*query, *document[:4]]))), abs=1e-4
    )
    assert rank.ask("/v1/embeddings", {"model": "rank", "input": "a"}).status == 400
    refused = rank.ask("/rerank", {"query": "a", "documents": ["b"], "instruction": "c"})
    assert (refused.status, refused.error["param"]) == (400, "instruction")


def test_a_judge_of_yes_and_no_ranks(models, tmp_path):
    folder = checkpoints.write(tmp_path / "judge", Shape(family="qwen3"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    no, yes = (token_id for token_id in (tokenizer.token_to_id("n"), tokenizer.token_to_id("y")))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "classifier_from_token": ["n", "y"]}))
    with api_process(folder, *ARGS, command=REAL) as judge:
        answer = judge.ask("/rerank", {"query": "steps", "documents": TEXTS, "instruction": "Find it"}).json
    from kvasir_runtime.frontend.pooling.inputs import JUDGE_HEAD, JUDGE_TAIL

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    want = []
    for text in TEXTS:
        asked = f"{JUDGE_HEAD}<Instruct>: Find it\n<Query>: steps\n<Document>: {text}{JUDGE_TAIL}"
        with torch.inference_mode():
            logits = model(torch.tensor([tokenizer.encode(asked).ids]), use_cache=False).logits[0, -1]
        want.append(float(torch.softmax(logits[[no, yes]], dim=0)[1]))
    found = {item["index"]: item["relevance_score"] for item in answer["results"]}
    assert [found[index] for index in range(3)] == pytest.approx(want, abs=1e-4)
