"""The gRPC server that Envoy calls over a unix socket: one ext-proc stream per request, one log stream per worker.

Only translates: messages become calls of Picker, its answers become messages. The stubs are written by hand, since the
generated ones require the version of grpcio that generated them.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from kvasir_api import names
from kvasir_gateway.envoy.bootstrap import PICKER_SOCKET
from kvasir_gateway.picker.picker import Destination, Picker
from kvasir_gateway.picker.request_parser import ImmediateResponse
from kvasir_gateway.proto import access_log_pb2 as alog
from kvasir_gateway.proto import ext_proc_pb2 as proc

LOG = logging.getLogger(__name__)
PROCESS = "envoy.service.ext_proc.v3.ExternalProcessor"
ACCESS_LOG = "envoy.service.accesslog.v3.AccessLogService"
OVERWRITE = proc.HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
FRAME_BYTES = 1 << 16
"""Room for the fields around the body in its message."""


class ExtProcServer:
    """The gRPC server."""

    def __init__(self, picker: Picker, *, directory: Path, max_body_bytes: int) -> None:
        self._picker = picker
        self._socket = directory / PICKER_SOCKET
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", max_body_bytes + FRAME_BYTES),
                ("grpc.max_concurrent_streams", (1 << 31) - 1),
                ("grpc.so_reuseport", 0),
            )
        )
        self._server.add_generic_rpc_handlers((self._process_handler(), self._log_handler()))

    async def start(self) -> None:
        """Listen; the socket of an earlier process is replaced."""
        self._socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()
        self._socket.chmod(0o660)

    async def stop(self, grace_s: float) -> None:
        """Let running streams end within the grace."""
        await self._server.stop(grace_s)
        self._socket.unlink(missing_ok=True)

    def _process_handler(self) -> Any:
        method = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=proc.ProcessingRequest.FromString,
            response_serializer=proc.ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(PROCESS, {"Process": method})

    def _log_handler(self) -> Any:
        method = grpc.stream_unary_rpc_method_handler(
            self._logs,
            request_deserializer=alog.StreamAccessLogsMessage.FromString,
            response_serializer=alog.StreamAccessLogsResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(ACCESS_LOG, {"StreamAccessLogs": method})

    async def _process(
        self, messages: AsyncIterator[proc.ProcessingRequest], _context: Any
    ) -> AsyncIterator[proc.ProcessingResponse]:
        """One request. The stream ends with the decision, so that a picker that stops breaks no running answer."""
        inflight_id = target = ""
        headers: Mapping[str, str] = {}
        async for message in messages:
            if message.WhichOneof("request") != "request_headers":
                yield _response(self._picker.pick(message.request_body.body, inflight_id, target, headers))
                return
            head = message.request_headers
            headers = _headers(head.headers.headers)
            inflight_id = headers.get(names.HEADER_INFLIGHT_ID, "")
            target = headers.get(":path", "")
            answer = self._picker.respond_to_head(headers.get(":method", ""), target, headers)
            if answer is None and not head.end_of_stream:
                yield proc.ProcessingResponse(request_headers=proc.HeadersResponse())
                continue
            yield _response(answer or self._picker.pick(b"", inflight_id, target, headers), to_headers=True)
            return

    async def _logs(self, messages: AsyncIterator[alog.StreamAccessLogsMessage], _context: Any) -> Any:
        async for message in messages:
            for entry in message.http_logs.log_entry:
                inflight_id = entry.request.request_headers.get(names.HEADER_INFLIGHT_ID, "")
                if inflight_id:
                    flags = entry.common_properties.response_flags
                    self._picker.request_ended(
                        inflight_id,
                        status=entry.response.response_code.value,
                        client_left=flags.downstream_connection_termination,
                    )
        return alog.StreamAccessLogsResponse()


def _headers(headers: Iterable[proc.HeaderValue]) -> Mapping[str, str]:
    """Names to values. Envoy writes values as raw bytes, which need not be UTF-8."""
    return {header.key: header.raw_value.decode("latin-1") or header.value for header in headers}


def _response(outcome: Destination | ImmediateResponse, *, to_headers: bool = False) -> proc.ProcessingResponse:
    """to_headers: the request has no body, so this replies to its headers."""
    if isinstance(outcome, ImmediateResponse):
        return proc.ProcessingResponse(
            immediate_response=proc.ImmediateResponse(
                status=proc.HttpStatus(code=outcome.status),
                headers=_mutation(outcome.headers),
                body=outcome.body,
                details=outcome.details,
            )
        )
    destination = {names.HEADER_CLUSTER: outcome.cluster, names.HEADER_DESTINATION: ",".join(outcome.addresses)}
    common = proc.CommonResponse(header_mutation=_mutation(destination), clear_route_cache=True)
    if to_headers:
        return proc.ProcessingResponse(request_headers=proc.HeadersResponse(response=common))
    return proc.ProcessingResponse(request_body=proc.BodyResponse(response=common))


def _mutation(headers: Mapping[str, str]) -> proc.HeaderMutation:
    return proc.HeaderMutation(
        set_headers=[
            proc.HeaderValueOption(
                header=proc.HeaderValue(key=key, raw_value=value.encode("latin-1")), append_action=OVERWRITE
            )
            for key, value in headers.items()
        ]
    )
