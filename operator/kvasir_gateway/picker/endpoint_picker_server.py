"""The endpoint picker for proxies of others: gRPC over TCP, as an InferencePool of the Gateway API names one.

The proxy sends head and body of each request, and gets the endpoints, best first, in a header and in metadata, as the
endpoint picker protocol of the Gateway API's inference extension has it. Nothing is held, since such proxies wait for a
moment only; and a stream stays open until the answer has ended, so that the request counts meanwhile.
"""

import logging
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.struct_pb2 import Struct

from kvasir_api import names, openai_errors
from kvasir_gateway.picker import ext_proc_messages, request_parser
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.ext_proc_messages import PROCESS
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import ImmediateResponse
from kvasir_gateway.proto import ext_proc_pb2 as proc

LOG = logging.getLogger(__name__)
HEALTH: Final = "grpc.health.v1.Health"
SERVING: Final = b"\x08\x01"
"""A HealthCheckResponse with the status SERVING."""
METADATA: Final = "envoy.lb"
SUBSET_METADATA: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
CHUNK_BYTES: Final = 62_000
"""Envoy takes no larger pieces of a body from a processor."""
FULL_RETRY_S: Final = 1.0
FRAME_BYTES: Final = 1 << 16
DUPLEX: Final = proc.ProtocolConfiguration.BodySendMode.FULL_DUPLEX_STREAMED
BUFFERED: Final = proc.ProtocolConfiguration.BodySendMode.BUFFERED
OWN_HEADERS: Final = (names.HEADER_RELAYED, names.HEADER_SERVICE, names.HEADER_ORIGINAL_URL)
"""Believed of our own relay and Envoy alone."""
PICKER_HEADERS: Final = (names.HEADER_KV_PEER, names.HEADER_REFER)
"""A replica gets none of these from a client."""


@dataclass(slots=True, kw_only=True)
class _Stream:
    """One request. duplex: bodies go through the processor, which sends what the pod, or the client, shall get.
    num_bytes: of its body, while that is kept."""

    id: str
    headers: Mapping[str, str]
    subset: frozenset[str] | None
    duplex: bool
    answers_duplex: bool
    body: bytearray = field(default_factory=bytearray)
    decided: bool = False
    destination: Destination | None = None
    status: int = 0
    ended: bool = False
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPickerSettings:
    """address, port: where it listens; port 0 takes any free one. tls_directory: with tls.crt and tls.key, None for
    plain text; they are read again for each connection."""

    address: str
    port: int
    tls_directory: Path | None = None


class EndpointPickerServer:
    """The gRPC server. port: where it listens once it is started. max_held_bytes: bodies of all requests that are not
    decided upon yet, or not passed on."""

    def __init__(
        self, picker: Picker, settings: EndpointPickerSettings, *, max_body_bytes: int, max_held_bytes: int
    ) -> None:
        self._picker, self._address, self.port = picker, settings.address, settings.port
        self._max_body_bytes, self._tls = max_body_bytes, settings.tls_directory
        self._max_held_bytes, self._held_bytes = max_held_bytes, 0
        self._server = grpc.aio.server(
            options=(("grpc.max_receive_message_length", max_body_bytes + FRAME_BYTES), ("grpc.so_reuseport", 0))
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=proc.ProcessingRequest.FromString,
            response_serializer=proc.ProcessingResponse.SerializeToString,
        )
        health = grpc.unary_unary_rpc_method_handler(_is_serving)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(PROCESS, {"Process": process}),
                grpc.method_handlers_generic_handler(HEALTH, {"Check": health}),
            )
        )

    async def start(self) -> None:
        """Listen. Raises OSError where the certificate cannot be read, RuntimeError where the port is taken."""
        where = f"[{self._address}]:{self.port}" if ":" in self._address else f"{self._address}:{self.port}"
        if self._tls is None:
            self.port = self._server.add_insecure_port(where)
        else:
            credentials = grpc.dynamic_ssl_server_credentials(_certificate(self._tls), self._renewed)
            self.port = self._server.add_secure_port(where, credentials)
        await self._server.start()
        LOG.info("endpoint picker for other proxies on %s:%d", self._address, self.port)

    async def stop(self, grace_s: float) -> None:
        """Let running streams end within the grace."""
        await self._server.stop(grace_s)

    def _renewed(self) -> Any:
        assert self._tls is not None
        try:
            return _certificate(self._tls)
        except OSError:  # replaced just now: the one before is used once more
            return None

    async def _process(
        self, messages: AsyncIterator[proc.ProcessingRequest], _context: Any
    ) -> AsyncIterator[proc.ProcessingResponse]:
        stream: _Stream | None = None
        try:
            async for message in messages:
                if stream is None:
                    stream = _begun(message)
                for reply in self._replies(stream, message):
                    yield reply
                    if reply.WhichOneof("response") == "immediate_response":
                        return
                    del reply
                del message  # it may be a whole body, and the next one comes with the answer
                if stream.decided:
                    self._release(stream)
        finally:
            if stream is not None:
                self._release(stream)
            if stream is not None and stream.decided:
                addresses = stream.destination.addresses if stream.destination is not None else ("",)
                # Proxies that send no bodies of answers do not show their ends: the status counts.
                left = not stream.ended and (stream.answers_duplex or not stream.status)
                self._picker.request_ended(stream.id, status=stream.status, client_left=left, address=addresses[0])

    def _replies(self, stream: _Stream, message: proc.ProcessingRequest) -> Iterator[proc.ProcessingResponse]:
        """To one message; a request is decided upon when the last of it is there."""
        match kind := message.WhichOneof("request"):
            case "request_headers":
                yield from self._at_head(stream, is_whole=message.request_headers.end_of_stream)
            case "request_body" | "request_trailers":
                piece = message.request_body.body if kind == "request_body" and not stream.decided else b""
                stream.body += piece
                stream.num_bytes += len(piece)
                self._held_bytes += len(piece)
                is_whole = kind == "request_trailers" or message.request_body.end_of_stream or not stream.duplex
                if self._held_bytes > self._max_held_bytes:
                    why = "The gateway reads as many bytes of requests as it may at once. Try again."
                    error = openai_errors.overloaded(why, retry_after_s=FULL_RETRY_S)
                    yield ext_proc_messages.immediate(request_parser.error_response(error, _path(stream)))
                elif len(stream.body) > self._max_body_bytes:
                    error = openai_errors.body_too_large(self._max_body_bytes)
                    yield ext_proc_messages.immediate(request_parser.error_response(error, _path(stream)))
                elif is_whole and not stream.decided:
                    yield from self._decided(stream)
                if kind == "request_trailers":
                    yield proc.ProcessingResponse(request_trailers=proc.TrailersResponse())
            case "response_headers":
                status = ext_proc_messages.headers_of(message.response_headers).get(":status", "")
                stream.status = int(status) if status.isdecimal() else 0
                stream.ended = message.response_headers.end_of_stream
                yield proc.ProcessingResponse(response_headers=_answer_head(stream))
            case "response_body":
                stream.ended = message.response_body.end_of_stream
                yield proc.ProcessingResponse(response_body=_passed_on(stream, message.response_body))
            case "response_trailers":
                stream.ended = True
                yield proc.ProcessingResponse(response_trailers=proc.TrailersResponse())

    def _at_head(self, stream: _Stream, *, is_whole: bool) -> Iterator[proc.ProcessingResponse]:
        answer = self._picker.respond_to_head(stream.headers.get(":method", ""), _target(stream), stream.headers)
        if answer is not None:
            yield ext_proc_messages.immediate(answer)
        elif is_whole:
            yield from self._decided(stream, has_body=False)
        elif not stream.duplex:
            yield proc.ProcessingResponse(request_headers=proc.HeadersResponse())

    def _release(self, stream: _Stream) -> None:
        self._held_bytes -= stream.num_bytes
        stream.num_bytes = 0

    def _decided(self, stream: _Stream, *, has_body: bool = True) -> Iterator[proc.ProcessingResponse]:
        body, stream.decided = bytes(stream.body), True
        stream.body = bytearray()
        outcome = self._picker.pick_now(body, stream.id, _target(stream), stream.headers, within=stream.subset)
        if isinstance(outcome, ImmediateResponse):
            stream.status, stream.ended = outcome.status, True
            yield ext_proc_messages.immediate(outcome)
            return
        stream.destination = replace(outcome, body=None)
        addresses = ",".join(outcome.addresses)
        added = {name: value for name, value in outcome.headers.items() if name not in names.HEADERS_RATE_LIMIT}
        headers = {**added, names.HEADER_DESTINATION: addresses, names.HEADER_INFLIGHT_ID: stream.id}
        if outcome.body is not None:
            headers["content-length"] = str(len(outcome.body))
        metadata = Struct()
        metadata.update({METADATA: {names.HEADER_DESTINATION: addresses}})
        removed = [name for name in PICKER_HEADERS if name not in headers]
        mutation = ext_proc_messages.mutation(headers, removed)
        if has_body and not stream.duplex:
            common = proc.CommonResponse(header_mutation=mutation, clear_route_cache=True)
            if outcome.body is not None:
                common.body_mutation.body = outcome.body
            yield proc.ProcessingResponse(request_body=proc.BodyResponse(response=common), dynamic_metadata=metadata)
            return
        head = proc.HeadersResponse(response=proc.CommonResponse(header_mutation=mutation, clear_route_cache=True))
        yield proc.ProcessingResponse(request_headers=head, dynamic_metadata=metadata)
        if has_body:
            for piece in _pieces(body if outcome.body is None else outcome.body):
                yield proc.ProcessingResponse(request_body=piece)


def _begun(message: proc.ProcessingRequest) -> _Stream:
    """The first message has the head, and how bodies are sent; proxies that do not say it send them whole."""
    has_modes = message.HasField("protocol_config")
    headers = ext_proc_messages.headers_of(message.request_headers)
    return _Stream(
        id=uuid.uuid4().hex,
        headers={name: value for name, value in headers.items() if name not in OWN_HEADERS},
        subset=_subset(message),
        duplex=has_modes and message.protocol_config.request_body_mode == DUPLEX,
        answers_duplex=has_modes and message.protocol_config.response_body_mode == DUPLEX,
    )


def _subset(message: proc.ProcessingRequest) -> frozenset[str] | None:
    """The endpoints of the pool, None where the proxy names none."""
    known = message.metadata_context.filter_metadata
    if SUBSET_METADATA not in known or SUBSET not in known[SUBSET_METADATA].fields:
        return None
    value = known[SUBSET_METADATA].fields[SUBSET]
    listed = [item.string_value for item in value.list_value.values] or value.string_value.split(",")
    return frozenset(filter(None, map(str.strip, listed)))


def _answer_head(stream: _Stream) -> proc.HeadersResponse:
    """With the headers that our own Envoy adds."""
    chosen = stream.destination
    if chosen is None:
        return proc.HeadersResponse()
    limits = {name: value for name, value in chosen.headers.items() if name in names.HEADERS_RATE_LIMIT}
    headers = {**limits, names.HEADER_SERVICE: chosen.service}
    if chosen.fallback is not None:
        headers[names.HEADER_FALLBACK] = chosen.fallback
    return proc.HeadersResponse(response=proc.CommonResponse(header_mutation=ext_proc_messages.mutation(headers)))


def _passed_on(stream: _Stream, body: proc.HttpBody) -> proc.BodyResponse:
    """A piece of an answer as it is."""
    if not stream.answers_duplex:
        return proc.BodyResponse()
    piece = proc.StreamedBodyResponse(body=body.body, end_of_stream=body.end_of_stream)
    return proc.BodyResponse(response=proc.CommonResponse(body_mutation=proc.BodyMutation(streamed_response=piece)))


def _pieces(body: bytes) -> Iterator[proc.BodyResponse]:
    for start in range(0, max(1, len(body)), CHUNK_BYTES):
        piece = proc.StreamedBodyResponse(
            body=body[start : start + CHUNK_BYTES], end_of_stream=start + CHUNK_BYTES >= len(body)
        )
        mutation = proc.BodyMutation(streamed_response=piece)
        yield proc.BodyResponse(response=proc.CommonResponse(body_mutation=mutation))


def _target(stream: _Stream) -> str:
    return stream.headers.get(":path", "")


def _path(stream: _Stream) -> str:
    return _target(stream).partition("?")[0]


def _certificate(directory: Path) -> Any:
    pair = (directory / "tls.key").read_bytes(), (directory / "tls.crt").read_bytes()
    return grpc.ssl_server_certificate_configuration([pair])


async def _is_serving(_request: bytes, _context: Any) -> bytes:
    return SERVING
