"""Overload at a real server: requests that would be late are refused early, in OpenAI's shape, and then no more."""

import sys
import threading
from pathlib import Path

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import JSON, api_process
from kvasir_api import names

FAKE = (sys.executable, str(Path(__file__).resolve().parent.parent / "fakes" / "serve_fake.py"))
LIMIT_S = 120.0
CALLERS = 24
OBJECTIVE = {names.HEADER_TTFT: "1000"}

pytestmark = pytest.mark.xdist_group("server-overload")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "paced")
    options = ("--max-sequences", "4", "--max-batch-tokens", "64", "--served-model-name", "tiny")
    with api_process(folder, *options, command=FAKE) as running:
        yield running


def ask(client, number):
    return client.completions.create(
        model="tiny", prompt=f"{number} " + "word " * 8, max_tokens=8, extra_headers=OBJECTIVE
    )


def test_the_openai_client_is_refused_under_overload_and_served_after_it(server):
    refused: list[openai.RateLimitError] = []
    others: list[Exception] = []
    stop = threading.Event()

    def call(caller: int) -> None:
        number = 0
        with server.strict_openai() as client:
            while not stop.is_set():
                number += 1
                try:
                    ask(client, f"{caller}/{number}")
                except openai.RateLimitError as error:
                    refused.append(error)
                except Exception as error:  # noqa: BLE001 - the test shows it
                    others.append(error)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        server.until("refusals", lambda: others or len(refused) >= CALLERS, LIMIT_S)
    finally:
        stop.set()
        for caller in callers:
            caller.join(LIMIT_S)
    assert not others
    for error in refused:
        assert (error.status_code, error.code, error.type) == (429, "ttft_unreachable", "rate_limit_error")
        assert 1 <= int(error.response.headers["retry-after"]) <= 38
        assert "later than the objective of 1 s" in error.message
    server.until("an idle engine", lambda: not server.state()["running"] + server.state()["waiting"], LIMIT_S)
    with server.strict_openai() as client:
        assert ask(client, "after").usage.completion_tokens == 8
    found = server.state()
    assert found["ttft"]["refused"] == len(refused)
    assert found["served"]["failed"] == 0
    assert (found["served"]["refused"], found["served"]["retried"]) == (len(refused), 0)
    metrics = server.ask("/metrics").body.decode()
    assert f'kvasir_ttft_refusals_total{{model_name="tiny"}} {float(len(refused))}' in metrics
    assert f'code="ttft_unreachable",model_name="tiny"}} {float(len(refused))}' in metrics


@pytest.mark.parametrize(
    ("header", "count", "tries"),
    [
        *(("x-stainless-retry-count", *case) for case in (("0", 0), ("00", 0), ("soon", 0), ("1", 1), ("10", 1))),
        *(("x-envoy-attempt-count", *case) for case in (("1", 0), ("soon", 0), ("2", 1), ("3", 1))),
    ],
)
def test_a_try_is_counted_by_the_headers_of_openais_clients_and_of_the_gateway(server, header, count, tries):
    def retried():
        return server.state()["served"]["retried"]

    before = retried()
    body = {"model": "tiny", "prompt": "word", "max_tokens": 1}
    answer = server.ask("/v1/completions", body, headers={**JSON, header: count})
    assert answer.status == 200
    server.until("the count behind the answer's last byte", lambda: retried() - before == tries, LIMIT_S)


def test_the_state_has_the_bounds_of_the_queue(server):
    """By which the gateway holds what would be refused."""
    bounds = server.state()["queue"]
    assert bounds == {"requests": 1024, "tokens": 8_388_608, "seconds": 30.0, "ttft_s": 0.0}
