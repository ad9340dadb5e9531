"""A span for each request that was served, with the phases of its sequences, sent to an OTLP collector over HTTP.

Off unless --otlp-traces-endpoint is set; then neither the SDK nor an exporter is imported. Spans are made when a
request has ended, from what its log line is made of, and exported by a thread of the SDK: they hold no prompt, answer
or key. Names are those of the conventions for generative AI, and of vLLM for latencies that those do not know.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kvasir_api import __version__
from kvasir_runtime.errors import ModelError
from kvasir_runtime.server.observability.request_metrics import SequenceStats
from kvasir_runtime.wire import SamplingConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

DEFAULT_PATH: Final = "/v1/traces"
FLUSH_S: Final = 2.0
MAX_SEQUENCES: Final = 16
"""Sequences of one request whose phases get spans of their own."""
OPERATIONS: Final = {
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
    "/rerank": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/score": "score",
    "/v1/score": "score",
}
OTHER_OPERATION: Final = "chat"
CARRIERS: Final = ("traceparent", "tracestate")

Values = dict[str, str | int | float | list[str]]


@dataclass(slots=True, kw_only=True)
class RequestTrace:
    """The attributes of a request's span besides those of HTTP. The response fills it in.

    reason: why it ended. first_token_s: from its arrival, -1 where none came. sequences: those that ended.
    """

    answer_id: str = ""
    model: str = ""
    asked: Mapping[str, int | float] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reason: str = ""
    first_token_s: float = -1.0
    sequences: list[SequenceStats] = field(default_factory=list)


def asked(sampling: SamplingConfig) -> dict[str, int | float]:
    """The sampling parameters of a span, by the names of the conventions."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
    return {name: getattr(sampling, name) for name in names}


def attributes(route: str, method: str, status: int, duration_s: float, trace: RequestTrace) -> Values:
    """Of the span of a request."""
    longest = max(trace.sequences, key=lambda ended: ended.duration_s, default=None)
    found: Values = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
        "gen_ai.operation.name": OPERATIONS.get(route, OTHER_OPERATION),
        "gen_ai.provider.name": "kvasir",
        "gen_ai.request.model": trace.model,
        "gen_ai.response.model": trace.model,
        "gen_ai.response.id": trace.answer_id,
        "gen_ai.usage.input_tokens": trace.prompt_tokens,
        "gen_ai.usage.output_tokens": trace.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": trace.cached_tokens,
        "gen_ai.response.finish_reasons": [ended.reason for ended in trace.sequences],
        "gen_ai.latency.e2e": duration_s,
    }
    found |= {f"gen_ai.request.{name}": value for name, value in (trace.asked or {}).items()}
    if trace.first_token_s >= 0:
        found["gen_ai.latency.time_to_first_token"] = trace.first_token_s
    if longest is not None:
        named = {
            "gen_ai.latency.time_in_queue": longest.queue_s,
            "gen_ai.latency.time_in_model_prefill": longest.prefill_s,
            "gen_ai.latency.time_in_model_decode": longest.decode_s,
        }
        found |= {name: value for name, value in named.items() if value >= 0}
    if status >= 400:
        found["error.type"] = str(status)
    return found


def phases(ended: SequenceStats) -> Iterator[tuple[str, float, float]]:
    """Name, beginning and end of each phase of a sequence, in seconds before its end; what it never came to is absent.

    They follow one another up to the end: what the request waited for before the engine had it is before all of them.
    """
    left = sum(max(0.0, part) for part in (ended.queue_s, ended.prefill_s, ended.decode_s))
    for name, duration_s in (("queue", ended.queue_s), ("prefill", ended.prefill_s), ("decode", ended.decode_s)):
        if duration_s >= 0:
            yield name, left, left - duration_s
            left -= duration_s


class Tracer:
    """Makes spans and exports them in the background. exporter: where they go.

    percent: of the requests that no client traces.
    """

    def __init__(self, exporter: "SpanExporter", service: str, percent: int = 100) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # The environment's OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win, as everywhere.
        defaults = Resource({"service.name": "kvasir", "service.version": __version__, "kvasir.model": service})
        sampler = ParentBased(TraceIdRatioBased(percent / 100))
        resource = defaults.merge(_from_environment())
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("kvasir_runtime", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(
        self,
        *,
        route: str,
        method: str,
        status: int,
        duration_s: float,
        headers: Sequence[tuple[bytes, bytes]],
        request: RequestTrace,
    ) -> None:
        """A request ended now. headers: its own; the span is a child of the one that they name."""
        from opentelemetry import trace

        end_ns = time.time_ns()
        carrier = {
            name.decode(): value.decode("latin-1") for name, value in headers if name.decode("latin-1") in CARRIERS
        }
        given = attributes(route, method, status, duration_s, request)
        span = self._tracer.start_span(
            f"{given['gen_ai.operation.name']} {request.model}".strip(),
            context=self._propagator.extract(carrier),
            kind=trace.SpanKind.SERVER,
            attributes=given,
            start_time=end_ns - round(duration_s * 1e9),
        )
        inside = trace.set_span_in_context(span)
        for ended in request.sequences[:MAX_SEQUENCES]:
            # A sequence that ended before its request did is placed by its own duration.
            ended_ns = end_ns - round((duration_s - min(duration_s, ended.duration_s)) * 1e9)
            for name, begun_s, over_s in phases(ended):
                phase = self._tracer.start_span(name, context=inside, start_time=ended_ns - round(begun_s * 1e9))
                phase.end(ended_ns - round(over_s * 1e9))
        if status >= 500:
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end(end_ns)

    def close(self) -> None:
        """Send what is left, and wait a moment for the collector; what it does not take by then is lost."""
        # A thread that the end of the process does not wait for: the exporter tries a dead collector again and again.
        flushing = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)


def opened(endpoint: str, service: str, percent: int = 100) -> Tracer | None:
    """None where nothing is traced. Raises ModelError when the extra is not installed or the address is none."""
    if not endpoint:
        return None
    address = urlsplit(endpoint)
    if address.scheme not in {"http", "https"} or not address.netloc:
        raise ModelError(f"--otlp-traces-endpoint {endpoint} is not an http or https address of a collector")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ModelError(
            f"--otlp-traces-endpoint needs OpenTelemetry: install kvasir-serving[otel] ({error})"
        ) from error
    whole = endpoint if address.path not in {"", "/"} else endpoint.rstrip("/") + DEFAULT_PATH
    return Tracer(OTLPSpanExporter(endpoint=whole), service, percent)


def _from_environment() -> Any:
    from opentelemetry.sdk.resources import OTELResourceDetector

    return OTELResourceDetector().detect()
