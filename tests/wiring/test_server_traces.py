"""A served process sends spans to a collector, as children of the client's span, with phases inside of them."""

import time

import pytest

from fakes import checkpoints
from fakes.api_process import JSON, api_process
from fakes.collector import collector, values
from kvasir_runtime.server.observability.tracing import FLUSH_S

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "traced")


def ask(server, path, body, flags="01"):
    headers = {**JSON, "traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": "vendor=1"}
    return server.ask(path, {"model": "traced", **body}, headers=headers)


@pytest.mark.parametrize("path", ["", "/v1/traces", "/other"])
def test_spans_reach_the_collector_under_its_path(model, path):
    with collector() as sink, api_process(model, "--otlp-traces-endpoint", sink.url + path, env=QUICK) as server:
        assert server.ask("/v1/completions", {"model": "traced", "prompt": "a", "max_tokens": 3}).status == 200
        server.until("spans", lambda: sink.named("text_completion traced"))
        assert sink.paths == {path or "/v1/traces"}


def test_requests_are_children_of_the_clients_span_and_hold_their_phases(model):
    with collector() as sink, api_process(model, "--otlp-traces-endpoint", sink.url, env=QUICK) as server:
        answer = ask(
            server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}
        )
        assert ask(server, "/v1/completions", {"prompt": "a"}, flags="00").status == 200
        assert ask(server, "/v1/completions", {"prompt": "a", "stream": True, "n": 2, "max_tokens": 5}).status == 200
        assert server.ask("/v1/models").status == 200
        server.until("spans", lambda: sink.named("text_completion traced") and sink.named("decode"))
        (span,) = sink.named("chat traced")
        resource = next(resource for one, resource in sink.spans if one is span)
        server.signal()
        assert server.wait() == 0
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.trace_state == "vendor=1"
    found = values(span.attributes)
    assert found["gen_ai.response.id"] == answer.json["id"]
    assert found["gen_ai.usage.input_tokens"] == answer.json["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == 6
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert found["gen_ai.request.max_tokens"] == 6
    assert found["http.response.status_code"] == 200
    assert not [value for value in found.values() if "hello" in str(value)]
    assert resource["service.name"] == "kvasir"
    inside = [one for one, _ in sink.spans if one.parent_span_id == span.span_id]
    assert {one.name for one in inside} <= {"queue", "prefill", "decode"}
    assert {one.name for one in inside} >= {"prefill", "decode"}
    for one in inside:
        assert (
            span.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano <= span.end_time_unix_nano
        )
    # The one whose client said that it is not sampled is missing; the one with two choices has two of each phase.
    (streamed,) = sink.named("text_completion traced")
    assert len([one for one, _ in sink.spans if one.parent_span_id == streamed.span_id and one.name == "decode"]) == 2


def test_what_is_left_is_sent_at_the_end_and_a_missing_collector_harms_no_request(model):
    with collector() as sink:
        while not sink.named("text_completion traced"):
            with api_process(model, "--otlp-traces-endpoint", sink.url) as server:
                assert ask(server, "/v1/completions", {"prompt": "a"}).status == 200
                told = time.monotonic()
                server.signal()
                assert server.wait() == 0
                took_s = time.monotonic() - told
            assert sink.named("text_completion traced") or took_s >= FLUSH_S, "it did not wait for the collector"
        address = sink.url
    with api_process(model, "--otlp-traces-endpoint", address, env=QUICK) as server:
        assert ask(server, "/v1/completions", {"prompt": "a"}).status == 200
        server.signal()
        assert server.wait() == 0
