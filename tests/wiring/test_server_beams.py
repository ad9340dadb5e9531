"""Beam search over HTTP, judged by transformers and by the official client; nothing is left when a client goes."""

import json
import socket
import sys

import pytest
import torch

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.checkpoints import Shape
from fakes.oracle import oracle_of

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
PROMPT = [60 + 7 * place % 200 for place in range(21)]
STOPS = [5, 9, 14, 21, 33, 70, 90]
CHAT = [{"role": "user", "content": "plan"}]

pytestmark = pytest.mark.xdist_group("server-beams")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(family="qwen3", seed=3, std=0.3))


@pytest.fixture(scope="module")
def server(folder):
    options = ("--kv-cache-tokens", "4096", "--max-model-len", "2048", "--device", "cpu", "--speculation", "suffix")
    with api_process(folder, *options, command=REAL) as running:
        yield running


@pytest.fixture
def client(server):
    with server.strict_openai() as made:
        yield made


def search(client, *, prompt=PROMPT, n=4, max_tokens=16, extra=None, **fields):
    asked = {"use_beam_search": True, "return_token_ids": True, "ignore_eos": True, "stop_token_ids": STOPS}
    return client.completions.create(
        model="tiny", prompt=prompt, n=n, max_tokens=max_tokens, extra_body=asked | (extra or {}), **fields
    )


def tokens(answer):
    return [tuple(choice.token_ids) for choice in answer.choices]


@torch.inference_mode()
def judged(folder, width, max_tokens=16, **rest):
    ids = torch.tensor([PROMPT])
    done = oracle_of(folder)._model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=max_tokens,
        eos_token_id=STOPS,
        pad_token_id=1,
        do_sample=False,
        **rest,
    )
    tails = [row[len(PROMPT) :] for row in done.tolist()]
    ends = [next((place for place, token in enumerate(tail) if token in STOPS), len(tail) - 1) for tail in tails]
    return [tuple(tail[: end + 1]) for tail, end in zip(tails, ends, strict=True)]


@pytest.mark.parametrize(
    ("n", "rest"),
    [(4, {}), (4, {"length_penalty": 2.0, "early_stopping": True}), (7, {"early_stopping": "never"}), (1, {})],
)
def test_completions_are_those_of_transformers(client, folder, n, rest):
    answer = search(client, n=n, extra=rest)
    assert tokens(answer) == judged(folder, n, **rest)
    assert [choice.index for choice in answer.choices] == list(range(n))
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.completion_tokens == sum(map(len, tokens(answer)))


def test_best_of_is_the_width_and_n_are_shown(client, folder):
    assert tokens(search(client, n=2, extra={"best_of": 5})) == judged(folder, 5)[:2]


def test_settings_of_the_search_and_stops_are_heard(client):
    def reasons(**extra):
        return tokens(search(client, extra=extra)), [c.finish_reason for c in search(client, extra=extra).choices]

    endless, why = reasons(stop_token_ids=[])
    assert set(why) == {"length"}
    assert {len(one) for one in endless} == {16}
    stops = {"stop_token_ids": [endless[0][2], endless[0][6], endless[1][9]]}
    stopped, why = reasons(**stops)
    assert "stop" in why
    assert len({tuple(reasons(length_penalty=penalty, **stops)[0]) for penalty in (-2.0, 1.0, 5.0)}) > 1
    assert stopped != reasons(early_stopping=True, length_penalty=5.0, **stops)[0]
    hasty = {"early_stopping": True, "length_penalty": -5.0, **stops}
    assert min(map(len, reasons(**hasty)[0])) < 5
    assert min(map(len, reasons(min_tokens=5, **hasty)[0])) > 5


def test_a_batch_of_prompts_is_a_search_for_each(client):
    both = search(client, prompt=[PROMPT, PROMPT[3:]], n=3)
    assert tokens(both) == tokens(search(client, n=3)) + tokens(search(client, prompt=PROMPT[3:], n=3))


def test_a_stream_has_the_answers_at_its_end(client):
    whole = search(client, n=3)
    parts = [chunk for chunk in search(client, n=3, stream=True) if chunk.choices]
    texts = {chunk.choices[0].index: chunk.choices[0].text for chunk in parts}
    assert len(parts) == 3, "each comes in one piece"
    assert texts == {choice.index: choice.text for choice in whole.choices}


def test_logprobs_and_echo_come_with_a_search(server):
    body = {"model": "tiny", "prompt": PROMPT, "use_beam_search": True, "n": 2, "logprobs": 2, "echo": True}
    choices = server.ask("/v1/completions", body | {"return_token_ids": True, "max_tokens": 6}).json["choices"]
    for choice in choices:
        shown, stopped = choice["logprobs"], choice["finish_reason"] == "stop"
        assert shown["token_logprobs"][0] is None
        assert len(shown["tokens"]) == len(PROMPT) + len(choice["token_ids"]) - stopped
        assert all(len(top) >= 2 for top in shown["top_logprobs"][1:])


@pytest.mark.parametrize(("fields", "why"), [({"use_beam_search": True, "n": 2}, "beam search"), ({}, None)])
def test_a_search_says_that_it_has_no_drafts(server, fields, why):
    answer = server.ask("/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": 4} | fields)
    assert answer.status == 200
    assert answer.headers.get("x-kvasir-no-drafts") == why


def test_a_chat_is_searched_for_too(client):
    asked = {"use_beam_search": True, "best_of": 4, "return_token_ids": True, "ignore_eos": True}
    fields = {"model": "tiny", "messages": CHAT, "max_tokens": 8, "temperature": 0}
    found = client.chat.completions.create(**fields, n=2, extra_body=asked)
    greedy = client.chat.completions.create(**fields, extra_body={"return_token_ids": True, "ignore_eos": True})
    prompt = found.model_dump()["prompt_token_ids"]
    same = client.completions.create(
        model="tiny", prompt=prompt, n=2, max_tokens=8, temperature=0, extra_body=asked | {"best_of": 4}
    )
    assert [choice.token_ids for choice in found.choices] == [choice.token_ids for choice in same.choices]
    assert found.choices[0].token_ids != greedy.choices[0].token_ids or found.choices[1].token_ids


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 16, "max_tokens": 600}, "max_tokens", "maximum context length"),
        ({"temperature": 0.5}, "temperature", "no effect on a beam search"),
        ({"stop": "x"}, "stop", "no effect on a beam search"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(server, fields, param, words):
    body = {"model": "tiny", "prompt": PROMPT, "use_beam_search": True, "n": 2, **fields}
    answer = server.ask("/v1/completions", body)
    assert answer.status == 400
    assert words in answer.error["message"]
    assert answer.error["param"] == param


def test_a_client_that_leaves_frees_all_its_beams(server):
    body = json.dumps({"model": "tiny", "prompt": PROMPT, "use_beam_search": True, "n": 4, "max_tokens": 800})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    before = server.state()["totals"]
    while (totals := server.state()["totals"])["aborts"] == before["aborts"]:  # the search may end before it leaves
        with socket.create_connection(server.http) as connection:
            connection.sendall(f"{head}\r\n\r\n{body}".encode())
            server.until("four beams run", lambda ended=totals["completions"]: run_or_ended(server.state(), ended))
        state = server.until("they are gone", lambda: (found := server.state())["running"] == 0 and found)
        assert state["kv"]["pinned_tokens"] == 0


def run_or_ended(state, ended):
    return state["running"] == 4 or state["totals"]["completions"] > ended
