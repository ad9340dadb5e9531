"""The gRPC server that Envoy calls over a unix socket: one ext-proc stream per request, one log stream per worker, one
stream of clusters.

Only translates: messages become calls of Picker, its answers become messages. The stubs are written by hand, since the
generated ones require the version of grpcio that generated them.
"""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from kvasir_api import names
from kvasir_gateway.envoy.bootstrap import PICKER_SOCKET
from kvasir_gateway.hold_queue import MAX_HOLD_S, HeldRequest
from kvasir_gateway.picker import ext_proc_messages
from kvasir_gateway.picker.cluster_discovery import ClusterDiscovery
from kvasir_gateway.picker.ext_proc_messages import PROCESS
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_holder import RequestHolder
from kvasir_gateway.picker.request_parser import ImmediateResponse
from kvasir_gateway.proto import access_log_pb2 as alog
from kvasir_gateway.proto import ext_proc_pb2 as proc

LOG = logging.getLogger(__name__)
ACCESS_LOG = "envoy.service.accesslog.v3.AccessLogService"
CONTINUE = proc.ProcessingResponse(request_headers=proc.HeadersResponse())
WAIT = proc.ProcessingResponse(override_message_timeout=Duration(seconds=MAX_HOLD_S))
FRAME_BYTES = 1 << 16
"""Room for the fields around the body in its message."""
MOST_VERSIONS_BYTES = 1 << 24
"""Of the message in which an Envoy that connects names the clusters that it has: some 200 bytes each."""


class ExtProcServer:
    """The gRPC server."""

    def __init__(
        self,
        picker: Picker,
        holder: RequestHolder,
        clusters: ClusterDiscovery,
        *,
        directory: Path,
        max_body_bytes: int,
    ) -> None:
        self._picker, self._holder = picker, holder
        self._socket = directory / PICKER_SOCKET
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", max(max_body_bytes + FRAME_BYTES, MOST_VERSIONS_BYTES)),
                ("grpc.max_concurrent_streams", (1 << 31) - 1),
                ("grpc.so_reuseport", 0),
            )
        )
        self._server.add_generic_rpc_handlers((self._process_handler(), self._log_handler(), clusters.handler()))

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

    async def _process(self, _messages: Any, stream: Any) -> None:
        """One request. The stream ends with the decision, so that a picker that stops breaks no running answer; that of
        a held request stays open until there is one, and ends with its client.

        Messages are read and written one by one: iterators and generators around them take a tenth more of the time.
        """
        message = await stream.read()
        if message is grpc.aio.EOF:
            return  # the client left
        head = message.request_headers
        headers = ext_proc_messages.headers_of(head)
        inflight_id, target = headers.get(names.HEADER_INFLIGHT_ID, ""), headers.get(":path", "")
        answer = self._picker.respond_to_head(headers.get(":method", ""), target, headers)
        if answer is not None:
            await stream.write(ext_proc_messages.immediate(answer))
            return
        is_head, body = head.end_of_stream, b""
        if not is_head:
            await stream.write(CONTINUE)
            message = await stream.read()
            if message is grpc.aio.EOF:
                return
            body = message.request_body.body
        outcome = self._picker.pick(body, inflight_id, target, headers)
        del message, head, headers, body  # Envoy has them while the request is held
        if isinstance(outcome, HeldRequest):
            with self._holder.waiting(outcome) as decided:
                await stream.write(WAIT)
                outcome = await decided
        if isinstance(outcome, ImmediateResponse):
            await stream.write(ext_proc_messages.immediate(outcome))
        else:
            await stream.write(ext_proc_messages.forwarded(outcome, to_headers=is_head))

    async def _logs(self, messages: AsyncIterator[alog.StreamAccessLogsMessage], _context: Any) -> Any:
        async for message in messages:
            for entry in message.http_logs.log_entry:
                inflight_id = entry.request.request_headers.get(names.HEADER_INFLIGHT_ID, "")
                if inflight_id:
                    flags = entry.common_properties.response_flags
                    upstream = entry.common_properties.upstream_remote_address.socket_address
                    self._picker.request_ended(
                        inflight_id,
                        status=entry.response.response_code.value,
                        client_left=flags.downstream_connection_termination,
                        address=_host_and_port(upstream.address, upstream.port_value),
                    )
        return alog.StreamAccessLogsResponse()


def _host_and_port(host: str, port: int) -> str:
    """As addresses of endpoints are written; empty for none, and for a socket of the pod."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if host else ""
