"""What spans say, and that nothing of OpenTelemetry is there without the option."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvasir_runtime.errors import ModelError
from kvasir_runtime.server.observability import tracing
from kvasir_runtime.server.observability.request_metrics import SequenceStats
from kvasir_runtime.server.observability.tracing import RequestTrace, asked
from kvasir_runtime.wire import SamplingConfig

ENDED = SequenceStats(reason="stop", duration_s=4.0, queue_s=1.0, prefill_s=0.5, decode_s=2.0, prompt_tokens=9)
SAID = RequestTrace(
    answer_id="chatcmpl-1",
    model="m",
    asked=asked(SamplingConfig(max_tokens=7, temperature=0.5, seed=3)),
    prompt_tokens=9,
    completion_tokens=5,
    cached_tokens=4,
    first_token_s=1.75,
    sequences=[ENDED],
)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("http.request.method", "POST"),
        ("http.route", "/v1/chat/completions"),
        ("http.response.status_code", 200),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "kvasir"),
        ("gen_ai.request.model", "m"),
        ("gen_ai.response.id", "chatcmpl-1"),
        ("gen_ai.request.max_tokens", 7),
        ("gen_ai.request.temperature", 0.5),
        ("gen_ai.request.seed", 3),
        ("gen_ai.usage.input_tokens", 9),
        ("gen_ai.usage.output_tokens", 5),
        ("gen_ai.usage.cache_read.input_tokens", 4),
        ("gen_ai.response.finish_reasons", ["stop"]),
        ("gen_ai.latency.time_in_queue", 1.0),
        ("gen_ai.latency.time_in_model_prefill", 0.5),
        ("gen_ai.latency.time_in_model_decode", 2.0),
        ("gen_ai.latency.time_to_first_token", 1.75),
        ("gen_ai.latency.e2e", 4.5),
        ("error.type", None),
    ],
)
def test_a_span_has_the_attributes_of_the_conventions(name, want):
    assert tracing.attributes("/v1/chat/completions", "POST", 200, 4.5, SAID).get(name) == want


def test_what_did_not_happen_is_left_out():
    found = tracing.attributes(
        "/v1/embeddings", "POST", 503, 1.0, RequestTrace(sequences=[SequenceStats(reason="abort", duration_s=1)])
    )
    assert found["gen_ai.operation.name"] == "embeddings"
    assert found["error.type"] == "503"
    assert not [name for name in found if "time_" in name]


@pytest.mark.parametrize(
    ("ended", "want"),
    [
        (ENDED, [("queue", 3.5, 2.5), ("prefill", 2.5, 2.0), ("decode", 2.0, 0.0)]),
        (SequenceStats(reason="abort", duration_s=3, queue_s=1.0), [("queue", 1.0, 0.0)]),
        (SequenceStats(reason="abort", duration_s=3), []),
    ],
)
def test_phases_follow_one_another_up_to_the_end(ended, want):
    assert list(tracing.phases(ended)) == want


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://host:4317", "http://"])
def test_an_address_that_is_none_stops_the_start(endpoint):
    with pytest.raises(ModelError, match="is not an http or https address"):
        tracing.opened(endpoint, "m")


def test_off_means_that_neither_sdk_nor_exporter_is_imported():
    program = (
        "import sys; from kvasir_runtime.server import app, process;"
        "from kvasir_runtime.server.observability import tracing; assert tracing.opened('', 'm') is None;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def spans(percent, headers=()):
    """Names of the spans that one request leaves."""
    exporter = InMemorySpanExporter()
    made = tracing.Tracer(exporter, "m", percent)
    made.record(route="/v1/completions", method="POST", status=200, duration_s=4.0, headers=headers, request=SAID)
    made.close()
    return [span.name for span in exporter.get_finished_spans()]


def test_no_more_requests_are_traced_than_configured_unless_the_client_traces_them():
    assert spans(0) == []
    assert len(spans(100)) == 4
    traced = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert len(spans(0, [traced])) == 4
