"""Messages of Envoy's external-processing protocol from and to values of the picker; used by both of its servers."""

import math
from collections.abc import Iterable, Mapping

from kvasir_api import names
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.request_parser import ImmediateResponse
from kvasir_gateway.proto import ext_proc_pb2 as proc

PROCESS = "envoy.service.ext_proc.v3.ExternalProcessor"
OF_ONE_TRY = (
    names.HEADER_RETRIED_STATUSES,
    names.HEADER_STREAM,
    names.HEADER_SERVICE,
    names.HEADER_FALLBACK,
    names.HEADER_BACKEND,
    names.HEADER_BACKEND_MODEL,
    names.HEADER_KV_PEER,
    names.HEADER_REFER,
    names.HEADER_ORIGINAL_URL,
)
"""What a request that comes back from a replica may still have of its first try."""
OVERWRITE = proc.HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD


def headers_of(head: proc.HttpHeaders) -> Mapping[str, str]:
    """Names to values. Envoy writes values as raw bytes, which need not be UTF-8."""
    return {header.key: header.raw_value.decode("latin-1") or header.value for header in head.headers.headers}


def immediate(answer: ImmediateResponse) -> proc.ProcessingResponse:
    """An answer of the gateway's own."""
    return proc.ProcessingResponse(
        immediate_response=proc.ImmediateResponse(
            status=proc.HttpStatus(code=answer.status),
            headers=mutation(answer.headers),
            body=answer.body,
            details=answer.details,
        )
    )


def forwarded(outcome: Destination, *, to_headers: bool) -> proc.ProcessingResponse:
    """What our own Envoy does with a request. to_headers: it has no body, so this replies to its headers."""
    destination = {
        **outcome.headers,
        names.HEADER_CLUSTER: outcome.cluster,
        names.HEADER_DESTINATION: ",".join(outcome.addresses),
        names.HEADER_TIMEOUT: str(math.ceil(1000 * outcome.timeout_s)),
        **({names.HEADER_RETRIED_STATUSES: "429"} if outcome.retries_refusals else {}),
        **({names.HEADER_STREAM: "1"} if outcome.streams else {}),
        **({names.HEADER_SERVICE: outcome.service} if outcome.service else {}),
        **({names.HEADER_FALLBACK: outcome.fallback} if outcome.fallback else {}),
        **({} if outcome.body is None else {"content-length": str(len(outcome.body))}),
    }
    body = None if outcome.body is None else proc.BodyMutation(body=outcome.body)
    stale = [name for name in OF_ONE_TRY if name not in destination] if outcome.comes_back else []
    mutated = mutation(destination, stale)
    common = proc.CommonResponse(header_mutation=mutated, body_mutation=body, clear_route_cache=True)
    if to_headers:
        return proc.ProcessingResponse(request_headers=proc.HeadersResponse(response=common))
    return proc.ProcessingResponse(request_body=proc.BodyResponse(response=common))


def mutation(headers: Mapping[str, str], removed: Iterable[str] = ()) -> proc.HeaderMutation:
    """Headers that are set, in place of those of the same name, and names of those that are removed."""
    return proc.HeaderMutation(
        remove_headers=removed,
        set_headers=[
            proc.HeaderValueOption(
                header=proc.HeaderValue(key=key, raw_value=value.encode("latin-1")), append_action=OVERWRITE
            )
            for key, value in headers.items()
        ],
    )
