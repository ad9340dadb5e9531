"""Tenants of a real server: one key learns nothing of what another has sent, unless sharing is switched on."""

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import JSON, api_process
from kvasir_api import ended_requests, names

PROMPT = "the operator watches the services and the engine reads a plan and answers with tokens " * 8
REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
ARGS = ("--kv-cache-tokens", "2048", "--device", "cpu", "--served-model-name", "tiny")
KEYS = ("--api-key", "key-of-a", "--api-key", "key-of-b")
LONG = 131_072
HEADER = ("--tenant-header", "X-Tenant")

pytestmark = pytest.mark.xdist_group("server-tenants")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")


def client_of(server, key, **headers):
    url = "http://{}:{}/v1".format(*server.http)
    return contextlib.closing(
        openai.OpenAI(base_url=url, api_key=key or "unused", max_retries=0, default_headers=headers)
    )


def cached(server, key, prompt=PROMPT, salt="", **headers):
    """Tokens of a prompt that were found in the cache, as the client is told."""
    with client_of(server, key, **headers) as client:
        made = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=4, temperature=0, extra_body={"cache_salt": salt}
        )
    return made.usage.prompt_tokens_details.cached_tokens


def test_keys_share_nothing(model):
    with api_process(model, *ARGS, *KEYS, "--log-format", "json", command=REAL) as server:
        assert [cached(server, "key-of-a") for _ in range(2)] == [0, hit := cached(server, "key-of-a")]
        assert hit > 100
        assert [cached(server, "key-of-b"), cached(server, "key-of-b")] == [0, hit]
        assert [cached(server, "key-of-b", salt="x"), cached(server, "key-of-a", salt="x")] == [0, 0]
        assert cached(server, "key-of-a", **{names.HEADER_INFLIGHT_ID: "from-a-gateway"}) == hit
        document = ended_requests.decode(server.ask(names.PATH_ENDED_REQUESTS, ops=True).body)
        (ended,) = document.requests
        assert (ended.id, ended.cached_tokens, ended.completion_tokens) == ("from-a-gateway", hit, 4)
        assert ended.prompt_tokens > hit
        assert ended.first_token_s > 0
        again = f"{names.PATH_ENDED_REQUESTS}?instance={document.instance}&after={document.last}"
        assert ended_requests.decode(server.ask(again, ops=True).body).requests == ()
        output = server.output()
        assert '"tenant": "api-key-1"' in output
        assert '"tenant": "api-key-2"' in output
        assert "key-of" not in output


def test_one_tenant_is_forgotten_here_and_on_the_host(model, tmp_path):
    host = ("--kv-host-bytes", "20000000", "--kv-host-dir", str(tmp_path / "kv"))
    with api_process(model, *ARGS, *KEYS, *host, command=REAL) as server:
        hits = [cached(server, key) or cached(server, key) for key in ("key-of-a", "key-of-b")]
        server.until("blocks are on the host", lambda: server.state()["kv_host"]["stored_tokens"] >= 2 * hits[0])
        reset = f"{names.PATH_RESET_PREFIX_CACHE}?tenant="
        assert server.ask(reset + "nobody", ops=True, method="POST").status == 404
        assert server.ask(reset + "api-key-1", ops=True, method="POST").json == {"reset": True}
        assert [cached(server, key) for key in ("key-of-a", "key-of-b")] == [0, hits[1]]
        assert hits[0] == hits[1] > 100


def test_a_key_is_no_more_urgent_than_another_and_is_told_so(model):
    def told(server, body, **headers):
        with client_of(server, "key-of-a", **headers) as client:
            made = client.completions.with_raw_response.create(
                model="tiny", prompt="hello ", max_tokens=2, extra_body=body
            )
        return made.headers.get("x-kvasir-ignored-fields")

    urgent = {"x-kvasir-priority": "-1"}
    with api_process(model, *KEYS) as server:
        assert [told(server, {"priority": asked}) for asked in (-1, 0, 1)] == ["priority", None, None]
        assert told(server, {"priority": -1}, **urgent) == "x-kvasir-priority"
        assert told(server, {"priority": -1}, **{"x-kvasir-priority": "1"}) is None
    with api_process(model, *KEYS, "--most-urgent-priority", "-1") as server:
        assert [told(server, {"priority": asked}) for asked in (-2, -1)] == ["priority", None]
        assert told(server, {}, **urgent) is None
    refused = pytest.raises(openai.BadRequestError, match=r"`priority` is at least 0 here")
    with api_process(model, *KEYS, "--strict-fields") as server, refused:
        told(server, {"priority": -1})


@pytest.mark.parametrize("options", [(), ("--shared-prefix-cache",)])
def test_ids_of_another_tenant_are_unknown(model, options):
    def ask(server, key, path, body=None, method=None):
        head = {**JSON, "authorization": f"Bearer {key}"}
        return server.ask(path, body, headers=head, method=method)

    with api_process(model, *KEYS, *options, faults={"step_s": 0.1}) as server, client_of(server, "key-of-a") as of_a:
        stream = of_a.completions.create(model="tiny", prompt="hello ", max_tokens=3000, stream=True)
        running = next(stream).id
        late = of_a.responses.create(model="tiny", input="hi", max_output_tokens=3000, background=True).id
        made = of_a.responses.create(model="tiny", input="hi", max_output_tokens=2).id
        for answer_id in (running, late, made):
            assert ask(server, "key-of-b", "/abort_requests", {"request_ids": [answer_id]}).json == {"num_aborted": 0}
            assert ask(server, "key-of-b", "/abort_request", {"rid": answer_id}).json == {"num_aborted": 0}
        for response_id in (late, made):
            unknown = [
                ask(server, "key-of-b", f"/v1/responses/{response_id}{rest}", {} if method == "POST" else None, method)
                for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"))
            ]
            assert [one.status for one in unknown] == [404] * 4
        further = {"model": "tiny", "input": "on", "max_output_tokens": 2, "previous_response_id": made}
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            refused = ask(server, "key-of-b", path, further)
            assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
        assert ask(server, "key-of-a", "/v1/responses", further).status == 200
        assert ask(server, "key-of-a", f"/v1/responses/{late}/cancel", {}).json["status"] == "cancelled"
        assert ask(server, "key-of-a", "/abort_requests", {"request_ids": [running]}).json == {"num_aborted": 1}
        assert ask(server, "key-of-a", f"/v1/responses/{made}", method="DELETE").json["deleted"]


def test_keys_share_where_they_are_told_to(model):
    with api_process(model, *ARGS, *KEYS, "--shared-prefix-cache", command=REAL) as server:
        assert cached(server, "key-of-a") == 0
        assert cached(server, "key-of-b") > 100


def test_a_trusted_proxy_names_the_tenants(model):
    with api_process(model, *ARGS, *KEYS[:2], *HEADER, command=REAL) as server:
        assert cached(server, "key-of-a", **{"x-tenant": "team/a"}) == 0
        assert cached(server, "key-of-a", **{"x-tenant": "team/b"}) == 0
        assert cached(server, "key-of-a") == 0, "without the header the key is the tenant"
        assert cached(server, "key-of-a", **{"x-tenant": "team/a"}) > 100
        with pytest.raises(openai.BadRequestError, match="header x-tenant takes a name"):
            cached(server, "key-of-a", **{"x-tenant": "a b"})
    with api_process(model, *ARGS, command=REAL) as server:
        cached(server, "", **{"x-tenant": "team/a"})
        assert cached(server, "", **{"x-tenant": "team/b"}) > 100, "a header that is not trusted does nothing"


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ({"x-kvasir-priority": "soon"}, {}, "header x-kvasir-priority takes an integer from -100 to 100"),
        ({"x-kvasir-priority": "101"}, {}, "header x-kvasir-priority takes an integer from -100 to 100"),
        ({"x-slo-ttft-ms": "-1"}, {}, "header x-slo-ttft-ms takes milliseconds above 0"),
        ({"x-slo-ttft-ms": "nan"}, {}, "header x-slo-ttft-ms takes milliseconds above 0"),
        ({}, {"priority": -101}, "priority"),
    ],
)
def test_a_wrong_priority_or_objective_is_rejected_by_name(served, headers, body, message):
    with client_of(served, "", **headers) as client, pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], extra_body=body, max_tokens=2
        )


def test_priorities_and_objectives_are_taken(served):
    headers = {"x-kvasir-priority": "-3", "x-slo-ttft-ms": "250"}
    with client_of(served, "", **headers) as client:
        made = client.completions.with_raw_response.create(
            model="tiny", prompt="hello ", max_tokens=2, extra_body={"priority": 5}
        )
    assert "x-kvasir-ignored-fields" not in made.headers


@pytest.fixture(scope="module")
def served(model):
    with api_process(model) as server:
        yield server


def test_a_tenant_has_its_place_in_a_queue_that_another_has_filled(tmp_path):
    """One row, which a request keeps until it is aborted, and two that may wait."""
    model = checkpoints.write(tmp_path / "tiny", checkpoints.Shape(max_position_embeddings=LONG))
    bounds = ("--max-sequences", "1", "--max-waiting", "2", "--kv-cache-tokens", str(LONG))
    with api_process(model, *ARGS, *KEYS, *bounds, command=REAL) as server, ThreadPoolExecutor() as others:

        def ask(key, **fields):
            body = {"model": "tiny", "prompt": "a plan", "max_tokens": 2, **fields}
            return server.ask("/v1/completions", body, headers={**JSON, "authorization": f"Bearer {key}"})

        def until(waiting):
            server.until(
                f"{waiting} wait", lambda: [server.state()[name] for name in ("running", "waiting")] == [1, waiting]
            )

        with client_of(server, "key-of-a") as client:
            held = client.completions.create(
                model="tiny", prompt="hold", max_tokens=LONG - 100, stream=True, extra_body={"ignore_eos": True}
            )
            until(0)
            earlier = others.submit(ask, "key-of-a")
            until(1)
            later = others.submit(ask, "key-of-a")
            until(2)
            refused = ask("key-of-a")
            assert (refused.status, refused.error["code"]) == (429, "overloaded")
            other = others.submit(ask, "key-of-b")
            gives_way = later.result(timeout=60)
            assert (gives_way.status, gives_way.error["code"]) == (429, "overloaded")
            assert "gives way" in gives_way.error["message"]
            assert ask("key-of-b").status == 429, "it has half of the places"
            held.close()
        assert [one.result(timeout=60).status for one in (earlier, other)] == [200, 200]
