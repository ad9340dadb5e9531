"""The load of this pod in a response header, in the form of the Open Request Cost Aggregation (ORCA) standard.

Called by the middleware for requests with the header `endpoint-load-metrics-format`, so that a balancer which sees
every answer needs no scrape. Pure. Names are vLLM's, which the balancers know."""

import json
from typing import Final

from kvasir_api.state import RuntimeState
from kvasir_runtime.server.observability.vllm_metrics import pinned_fraction

ASKED: Final = b"endpoint-load-metrics-format"
GIVEN: Final = b"endpoint-load-metrics"


def headers(form: bytes, state: RuntimeState) -> list[tuple[bytes, bytes]]:
    """The header in form TEXT or JSON, whatever its case; nothing for a form that is neither."""
    named = {
        "kv_cache_usage_perc": round(pinned_fraction(state), 4),
        "num_requests_waiting": state.waiting,
        "num_requests_running": state.running,
    }
    match form.upper():
        case b"TEXT":
            text = "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
        case b"JSON":
            text = "JSON " + json.dumps({"named_metrics": named})
        case _:
            return []
    return [(GIVEN, text.encode())]
