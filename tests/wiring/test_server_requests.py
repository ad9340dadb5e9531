"""What requests may ask for, through the official client with strict validation, on a tiny real model.

Each test fails when its parameter is ignored: it compares with the answer without it.
"""

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.checkpoints import Shape
from fakes.oracle import oracle_of

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
PROMPT = "the operator watches the services; grüße "
CHAT = [{"role": "user", "content": "plan"}]

pytestmark = pytest.mark.xdist_group("server-requests")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(family="qwen3", seed=3))


@pytest.fixture(scope="module")
def server(folder):
    with api_process(folder, "--kv-cache-tokens", "16384", "--device", "cpu", command=REAL) as running:
        yield running


@pytest.fixture
def client(server):
    with server.strict_openai() as made:
        yield made


def complete(client, prompt=PROMPT, *, max_tokens=24, temperature=0, extra=None, **fields):
    return client.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        extra_body={"ignore_eos": True, "return_token_ids": True, **(extra or {})},
        **fields,
    )


def tokens(answer, index=0):
    return answer.choices[index].token_ids


def test_penalties_and_biases_change_the_answer(client):
    plain = tokens(complete(client))
    first = plain[0]
    assert len(set(plain)) < 24, "the tiny model repeats itself, or the test says nothing"
    assert len(set(tokens(complete(client, frequency_penalty=2)))) > len(set(plain))
    assert len(set(tokens(complete(client, presence_penalty=2)))) > len(set(plain))
    assert len(set(tokens(complete(client, extra={"repetition_penalty": 50})))) == 24
    assert first not in tokens(complete(client, logit_bias={str(first): -100}))
    assert set(tokens(complete(client, logit_bias={"77": 100}))) == {77}
    assert set(tokens(complete(client, extra={"allowed_token_ids": [80, 90]}))) <= {80, 90}
    assert tokens(complete(client)) == plain


def test_bad_words_are_not_said(client):
    choice = complete(client, logprobs=0).choices[0]
    place, word = next((i, t) for i, t in enumerate(choice.logprobs.tokens) if t.isascii() and t.isalpha())
    held = complete(client, extra={"bad_words": [word]})
    assert choice.token_ids[place] not in tokens(held)
    assert tokens(held)[:place] == choice.token_ids[:place]


def test_logprobs_of_a_completion_are_the_models(client, folder):
    answer = complete(client, logprobs=3, presence_penalty=1.5)
    (choice,) = answer.choices
    prompt, said, found = choice.prompt_token_ids, choice.token_ids, choice.logprobs
    wanted = oracle_of(folder).logits([*prompt, *said])[len(prompt) - 1 : -1].log_softmax(-1)
    assert found.token_logprobs == pytest.approx([float(wanted[i, t]) for i, t in enumerate(said)], abs=1e-3)
    for place, (top, row) in enumerate(zip(found.top_logprobs, wanted, strict=True)):
        assert found.tokens[place] in top
        assert sorted(top.values(), reverse=True)[:3] == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)
    ends = [*found.text_offset[1:], len(choice.text)]
    for token, start, end in zip(found.tokens, found.text_offset, ends, strict=True):
        assert token.startswith(("bytes:", "<|")) or choice.text[start:end] == token


def test_logprobs_of_chosen_ids_and_of_the_whole_vocabulary(client, folder):
    ids, as_ids = [300, 5, 17], {"return_tokens_as_token_ids": True}
    (choice,) = complete(client, extra={"logprob_token_ids": ids, **as_ids}).choices
    prompt, said = choice.prompt_token_ids, choice.token_ids
    wanted = oracle_of(folder).logits([*prompt, *said])[len(prompt) - 1 : -1].log_softmax(-1)
    for token, top, row in zip(said, choice.logprobs.top_logprobs, wanted, strict=True):
        shown = {int(name.removeprefix("token_id:")): value for name, value in top.items()}
        assert set(shown) == {token, *ids}
        assert [shown[one] for one in ids] == pytest.approx([float(row[one]) for one in ids], abs=1e-3)
    (choice,) = complete(client, max_tokens=2, logprobs=-1, extra=as_ids).choices
    assert [len(top) for top in choice.logprobs.top_logprobs] == [320, 320]
    plain = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=2, logprobs=True, extra_body={"logprob_token_ids": ids, **as_ids}
    )
    for position in plain.choices[0].logprobs.content:
        assert [top.token for top in position.top_logprobs] == [f"token_id:{one}" for one in ids]


def test_rows_with_and_without_chosen_ids_share_a_step(client):
    """Drawn side by side as one by one: what one request asks of a step changes nothing of the others."""
    kinds = [{"logprobs": 3}, {"extra": {"logprob_token_ids": [7, 9, 300]}}, {}, {"logprobs": 0}]
    alone = [complete(client, **kind).choices[0] for kind in kinds]
    with ThreadPoolExecutor(len(kinds)) as pool:
        together = list(pool.map(lambda kind: complete(client, **kind).choices[0], kinds))
    for one, other in zip(alone, together, strict=True):
        assert one.token_ids == other.token_ids
        if one.logprobs is None:
            assert other.logprobs is None
            continue
        for left, right in zip(one.logprobs.top_logprobs, other.logprobs.top_logprobs, strict=True):
            assert left == pytest.approx(right, abs=1e-3)


def test_streamed_logprobs_are_the_same(client, server):
    whole = complete(client, logprobs=2).choices[0]
    # OpenAI's own chunks have no reason before the last either, which its strict type forbids.
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as loose:
        chunks = list(complete(loose, logprobs=2, stream=True))
    offsets, values, ids, text = [], [], [], ""
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.text
            ids += choice.token_ids
            if choice.logprobs is not None:
                offsets += choice.logprobs.text_offset
                values += choice.logprobs.token_logprobs
    assert (text, ids, offsets) == (whole.text, whole.token_ids, whole.logprobs.text_offset)
    assert values == pytest.approx(whole.logprobs.token_logprobs, abs=1e-4)


def chat(client, **fields):
    return client.chat.completions.create(
        model="tiny", messages=CHAT, temperature=0, max_tokens=16, extra_body={"ignore_eos": True}, **fields
    )


def test_logprobs_of_a_chat_streamed_and_whole(client):
    plain = chat(client).choices[0]
    assert plain.logprobs is None
    whole = chat(client, logprobs=True, top_logprobs=2).choices[0]
    content = whole.logprobs.content
    assert len(content) == 16
    assert b"".join(bytes(token.bytes) for token in content).decode(errors="replace") == whole.message.content
    for token in content:
        assert [one.logprob for one in token.top_logprobs] == sorted([t.logprob for t in token.top_logprobs])[::-1]
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob), "greedy takes the likeliest"
        assert len(token.top_logprobs) == 2
    streamed = []
    for chunk in chat(client, logprobs=True, top_logprobs=2, stream=True):
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert [token.token for token in streamed] == [token.token for token in content]
    assert not chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs


def raw(server, body):
    answer = server.ask("/v1/completions", {"model": "tiny", "prompt": PROMPT, "temperature": 0, **body})
    assert answer.status == 200, answer.body
    return answer.json


def test_an_echoed_prompt_is_scored_whole_twice_alike(server, folder):
    body = {"echo": True, "logprobs": 2, "max_tokens": 0, "return_token_ids": True, "prompt": PROMPT * 20}
    for _ in range(2):
        answer = raw(server, body)
        (choice,) = answer["choices"]
        prompt, found = choice["prompt_token_ids"], choice["logprobs"]
        assert choice["text"] == PROMPT * 20
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert found["token_logprobs"][0] is None
        assert found["top_logprobs"][0] is None
        wanted = oracle_of(folder).logits(prompt).log_softmax(-1)
        assert found["token_logprobs"][1:] == pytest.approx(
            [float(wanted[i, t]) for i, t in enumerate(prompt[1:])], abs=1e-3
        )
        assert all(before <= after for before, after in pairwise(found["text_offset"]))


def test_an_echo_comes_before_the_answer(server):
    plain = raw(server, {"max_tokens": 5})["choices"][0]["text"]
    echoed = raw(server, {"max_tokens": 5, "echo": True, "logprobs": 0})
    assert echoed["choices"][0]["text"] == PROMPT + plain
    found = echoed["choices"][0]["logprobs"]
    assert len(found["tokens"]) == echoed["usage"]["total_tokens"]
    assert found["text_offset"][-5] == len(PROMPT)
    pieces = server.ask(
        "/v1/completions",
        {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 5, "echo": True, "stream": True},
    )
    frames = [json.loads(line[6:]) for line in pieces.body.decode().split("\n\n") if line.startswith("data: {")]
    assert "".join(frame["choices"][0]["text"] for frame in frames) == PROMPT + plain


def test_prompt_logprobs_are_those_of_vllm(server):
    body = {"prompt_logprobs": 2, "max_tokens": 2, "return_token_ids": True}
    (choice,) = raw(server, body)["choices"]
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    assert len(rest) == len(choice["prompt_token_ids"]) - 1
    for token_id, entries in zip(choice["prompt_token_ids"][1:], rest, strict=True):
        assert {1, 2, entries[str(token_id)]["rank"]} == {entry["rank"] for entry in entries.values()}
    answer = server.ask("/v1/chat/completions", {"model": "tiny", "messages": CHAT, "max_tokens": 1, **body})
    assert len(answer.json["prompt_logprobs"]) == len(answer.json["prompt_token_ids"])


def test_tokens_may_be_written_as_their_ids(server):
    (choice,) = raw(server, {"logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True})["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


def test_the_best_of_many_is_shown(client):
    many = complete(client, n=6, temperature=1.5, seed=5, logprobs=0, extra={})
    totals = [math.fsum(choice.logprobs.token_logprobs) for choice in many.choices]
    order = sorted(range(6), key=lambda index: -totals[index])
    best = complete(client, n=2, best_of=6, temperature=1.5, seed=5)
    assert [choice.text for choice in best.choices] == [many.choices[index].text for index in order[:2]]
    assert best.choices[0].logprobs is None
    assert best.usage.completion_tokens == 6 * 24


def test_a_cut_prompt_is_its_end(client):
    cut = complete(client, extra={"truncate_prompt_tokens": 4})
    assert cut.usage.prompt_tokens == 4
    whole = complete(client).choices[0].prompt_token_ids
    assert tokens(cut) == tokens(complete(client, prompt=whole[-4:]))


def test_a_chat_is_continued_or_left_open(server):
    def prompt(**fields):
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, "return_token_ids": True, **fields}
        ids = server.ask("/v1/chat/completions", body).json["prompt_token_ids"]
        return server.ask("/detokenize", {"tokens": ids}).json["prompt"]

    messages = [*CHAT, {"role": "assistant", "content": "the engine re"}]
    assert prompt().endswith("the engine re<|im_end|>\n<|im_start|>assistant\n")
    assert prompt(add_generation_prompt=False).endswith("the engine re<|im_end|>\n")
    assert prompt(continue_final_message=True).endswith("the engine re")


def test_special_tokens_are_shown_on_request(client):
    extra = {"allowed_token_ids": [1], "ignore_eos": True}
    assert complete(client, max_tokens=2, extra=extra).choices[0].text == ""
    shown = complete(client, max_tokens=2, extra={**extra, "skip_special_tokens": False})
    assert shown.choices[0].text == "<|im_start|>" * 2
