"""The gRPC servers that Envoy calls over unix sockets: one ext-proc stream per request at one, and at the other one log
stream per worker and one stream of clusters.

Only translates: messages become calls of Picker, its answers become messages. The stubs are written by hand, since the
generated ones require the version of grpcio that generated them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from kvasir_api import names
from kvasir_gateway.envoy.bootstrap import PICKER_SOCKET, REQUESTS_SOCKET
from kvasir_gateway.hold_queue import MAX_HOLD_S, HeldRequest
from kvasir_gateway.picker import ext_proc_messages
from kvasir_gateway.picker.cluster_discovery import ClusterDiscovery
from kvasir_gateway.picker.grpc_streams import GrpcStream, GrpcStreamServer
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_holder import Outcome, RequestHolder
from kvasir_gateway.picker.request_parser import ImmediateResponse
from kvasir_gateway.proto import access_log_pb2 as alog
from kvasir_gateway.proto import ext_proc_pb2 as proc

LOG = logging.getLogger(__name__)
ACCESS_LOG = "envoy.service.accesslog.v3.AccessLogService"
CONTINUE = proc.ProcessingResponse(request_headers=proc.HeadersResponse()).SerializeToString()
WAIT = proc.ProcessingResponse(override_message_timeout=Duration(seconds=MAX_HOLD_S)).SerializeToString()
REFERRED = "internal_redirect"
"""Details of a try that a replica sent back: the request goes on with the same id."""
CLIENT_LEFT = "downstream_connection_termination", "downstream_remote_reset"
"""Flags of an answer that its client did not read to its end: it closed the connection, or with HTTP/2 the stream."""
CUT = (
    "upstream_request_timeout",
    "local_reset",
    "upstream_remote_reset",
    "upstream_connection_termination",
    "stream_idle_timeout",
    "upstream_max_stream_duration_reached",
    "duration_timeout",
    "upstream_protocol_error",
)
"""Flags of an answer that broke, whatever its status: by its replica, or for it took too long."""
FRAME_BYTES = 1 << 16
"""Room for the fields around the body in its message."""
MOST_VERSIONS_BYTES = 1 << 24
"""Of the message in which an Envoy that connects names the clusters that it has: some 200 bytes each."""


class ExtProcServer:
    """Both servers."""

    def __init__(
        self,
        picker: Picker,
        holder: RequestHolder,
        clusters: ClusterDiscovery,
        *,
        directory: Path,
        max_body_bytes: int,
    ) -> None:
        self._picker = picker
        self._socket = directory / PICKER_SOCKET
        self._requests = GrpcStreamServer(
            directory / REQUESTS_SOCKET,
            lambda stream: RequestStream(stream, picker, holder),
            most_bytes=max_body_bytes + FRAME_BYTES,
        )
        self._server = grpc.aio.server(
            options=(("grpc.max_receive_message_length", MOST_VERSIONS_BYTES), ("grpc.so_reuseport", 0))
        )
        self._server.add_generic_rpc_handlers((self._log_handler(), clusters.handler()))

    async def start(self) -> None:
        """Listen for streams of logs and clusters; the socket of an earlier process is replaced."""
        self._socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()
        self._socket.chmod(0o660)

    async def start_requests(self) -> None:
        """Listen for requests; the socket of an earlier process is replaced."""
        await self._requests.start()

    async def stop(self, grace_s: float) -> None:
        """Let running streams end within the grace."""
        await asyncio.gather(self._requests.stop(grace_s), self._server.stop(grace_s))
        self._socket.unlink(missing_ok=True)

    def _log_handler(self) -> Any:
        method = grpc.stream_unary_rpc_method_handler(
            self._logs,
            request_deserializer=alog.StreamAccessLogsMessage.FromString,
            response_serializer=alog.StreamAccessLogsResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(ACCESS_LOG, {"StreamAccessLogs": method})

    async def _logs(self, messages: AsyncIterator[alog.StreamAccessLogsMessage], _context: Any) -> Any:
        async for message in messages:
            for entry in message.http_logs.log_entry:
                inflight_id = entry.request.request_headers.get(names.HEADER_INFLIGHT_ID, "")
                if inflight_id and entry.response.response_code_details != REFERRED:
                    flags = entry.common_properties.response_flags
                    upstream = entry.common_properties.upstream_remote_address.socket_address
                    self._picker.request_ended(
                        inflight_id,
                        status=entry.response.response_code.value,
                        client_left=any(getattr(flags, flag) for flag in CLIENT_LEFT),
                        is_cut=any(getattr(flags, flag) for flag in CUT),
                        address=_host_and_port(upstream.address, upstream.port_value),
                    )
        return alog.StreamAccessLogsResponse()


class RequestStream:
    """One request, by its messages: its head, and its body where it has one. The stream ends with the decision, so that
    a picker that stops breaks no running answer; that of a held request stays open until there is one, and ends with
    its client."""

    def __init__(self, stream: GrpcStream, picker: Picker, holder: RequestHolder) -> None:
        self._stream, self._picker, self._holder = stream, picker, holder
        self._headers: Mapping[str, str] | None = None
        self._wait = ExitStack()

    def received(self, message: bytes) -> None:
        """As of StreamHandler."""
        request = proc.ProcessingRequest.FromString(message)
        if self._headers is not None:
            self._pick(self._headers, request.request_body.body, is_head=False)
            return
        head = request.request_headers
        headers = self._headers = ext_proc_messages.headers_of(head)
        answer = self._picker.respond_to_head(headers.get(":method", ""), headers.get(":path", ""), headers)
        if answer is not None:
            self._stream.end(ext_proc_messages.immediate(answer).SerializeToString())
        elif head.end_of_stream:
            self._pick(headers, b"", is_head=True)
        else:
            self._stream.send(CONTINUE)

    def left(self) -> None:
        """As of StreamHandler."""
        self._wait.close()

    def _pick(self, headers: Mapping[str, str], body: bytes, *, is_head: bool) -> None:
        inflight_id, target = headers.get(names.HEADER_INFLIGHT_ID, ""), headers.get(":path", "")
        outcome = self._picker.pick(body, inflight_id, target, headers)
        if not isinstance(outcome, HeldRequest):
            self._answer(outcome, is_head=is_head)
            return
        self._headers = {}  # Envoy has them while the request is held
        decided = self._wait.enter_context(self._holder.waiting(outcome))
        self._wait.callback(decided.cancel)
        decided.add_done_callback(partial(self._decided, is_head=is_head))
        self._stream.send(WAIT)

    def _decided(self, decided: asyncio.Future[Outcome], *, is_head: bool) -> None:
        if decided.cancelled():
            return
        self._wait.close()
        try:
            self._answer(decided.result(), is_head=is_head)
        except Exception:  # else its client would wait for as long as a request may be held
            LOG.exception("a held request could not be answered")
            self._stream.fail()

    def _answer(self, outcome: Outcome, *, is_head: bool) -> None:
        if isinstance(outcome, ImmediateResponse):
            found = ext_proc_messages.immediate(outcome)
        else:
            found = ext_proc_messages.forwarded(outcome, to_headers=is_head)
        self._stream.end(found.SerializeToString())


def _host_and_port(host: str, port: int) -> str:
    """As addresses of endpoints are written; empty for none, and for a socket of the pod."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if host else ""
