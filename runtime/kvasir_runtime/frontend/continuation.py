"""Continuation tokens: with the body of a request and its token, another replica goes on with the stream.

A token is pieces joined by dots, each signed together with all before it. The first piece names the stream, the others
hold what its choices have gained. A replica that ends sends a whole token; a proxy that may lose a replica at any
moment requests the pieces as they come and joins those that it has. Pure: keys are given.

The token holds the ids of the answer, how they came, and the seed. Everything else, the state of the grammar and of the
parsers included, follows from these and the body: the outputs are replayed through the same code, and what that
writes is dropped, since the client has it.
"""

import dataclasses
import hashlib
import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kvasir_api import openai_errors
from kvasir_runtime.frontend.choice_history import ChoiceHistory, ChoiceProgress
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.prepare import SEED_MASK
from kvasir_runtime.frontend.protocol.validation import CONTINUATION
from kvasir_runtime.wire import packed_ids

VERSION: Final = 1
SIGNATURE_BYTES: Final = 16
RAW_DEFLATE: Final = -15
"""As zlib names deflate without a head and a checksum."""
MAX_PIECE_BYTES: Final = 1 << 26
MAX_PIECES: Final = 1 << 21
"""One for each output at most, and a prompt and its answer have no more tokens than that."""
_OF_ONE_ANSWER: Final = frozenset({"answer_id", "created", "histories", "requests", "tool_results", "parser"})
_OF_ONE_SAMPLE: Final = frozenset({"seed", "max_tokens"})


class _OriginVersion(msgspec.Struct, frozen=True, array_like=True):
    """What the origin of every version begins with."""

    version: int


class StreamOrigin(_OriginVersion, frozen=True, array_like=True):
    """Which stream a token goes on with.

    created: unix seconds. seed: of the first choice. max_tokens: of each prompt's answers. model, tenant, request:
    digests of what it is bound to.
    """

    answer_id: str
    created: int
    seed: int
    max_tokens: tuple[int, ...]
    model: bytes
    tenant: bytes
    request: bytes


class TokenWriter:
    """Writes the pieces of one stream's token. origin: called for the first one, since it takes time by the prompt."""

    def __init__(self, key: bytes, origin: Callable[[], StreamOrigin]) -> None:
        self._key, self._signature, self._origin = key, b"", origin

    def begin(self) -> str:
        """The first piece, which has the origin."""
        return self._piece(self._origin())

    def add(self, gained: Sequence[ChoiceProgress]) -> str:
        """A further piece."""
        return self._piece(gained)

    def _piece(self, value: Any) -> str:
        packed = zlib.compress(msgspec.msgpack.encode(value), wbits=RAW_DEFLATE)
        self._signature = _signature(self._key, self._signature, packed)
        return urlsafe_b64encode(packed + self._signature).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSigner:
    """keys: the first signs, each verifies. model: digest of checkpoint and tokenizer. tenant: identity of the sender.

    Without keys no token is written and none is accepted.
    """

    keys: tuple[bytes, ...] = field(repr=False)
    model: bytes
    tenant: bytes = field(repr=False)

    def writer(self, request: GenerationRequest) -> TokenWriter:
        """For the token of a request's stream."""
        return TokenWriter(self.keys[0], lambda: self._origin(request))

    def _origin(self, request: GenerationRequest) -> StreamOrigin:
        return StreamOrigin(
            VERSION,
            request.answer_id,
            request.created,
            request.requests[0].sampling.seed,
            tuple(one.sampling.max_tokens for one in request.requests[:: request.num_drawn]),
            self.model,
            _digest(self.tenant),
            request_digest(request),
        )

    def resumed(self, request: GenerationRequest, token: str) -> GenerationRequest:
        """The request as it goes on with the stream of a token. Raises Refused."""
        if not self.keys:
            raise _refused("This server takes no continuations: it has no key for them.")
        if not request.stream or not may_continue(request):
            raise _refused("Only a stream of sampled answers can be continued.")
        origin, histories = opened(token, self.keys, len(request.requests))
        if origin.model != self.model:
            raise _refused("The continuation is of another model, or of another revision of it.")
        if not hmac.compare_digest(origin.tenant, _digest(self.tenant)):
            raise _refused("The continuation is of another tenant.")
        if origin.request != request_digest(request) or len(origin.max_tokens) != request.num_prompts:
            raise _refused("The continuation is of another request: the body must be the one that began the stream.")
        return _resumed(request, origin, histories)


def may_continue(request: GenerationRequest) -> bool:
    """Whether its stream can go on elsewhere. Beams have sent nothing, and results of tools went to one replica."""
    return not request.is_beam_search and request.tool_results is None


def opened(token: str, keys: Sequence[bytes], num_choices: int) -> tuple[StreamOrigin, tuple[ChoiceHistory, ...]]:
    """What a token holds, once its signatures are verified. Raises Refused."""
    first, *others = token.split(".", MAX_PIECES)
    head, signature = _split(first)
    key = next((key for key in keys if hmac.compare_digest(signature, _signature(key, b"", head))), None)
    if key is None:
        raise _invalid()
    histories = tuple(ChoiceHistory() for _ in range(num_choices))
    try:
        origin = _decoded(_inflated(head))
        for piece in others:
            packed, signed = _split(piece)
            signature = _signature(key, signature, packed)
            if not hmac.compare_digest(signed, signature):
                raise _invalid()
            for gained in msgspec.msgpack.decode(_inflated(packed), type=list[ChoiceProgress]):
                histories[gained.index].extend(gained)
    except (msgspec.MsgspecError, zlib.error, IndexError, ValueError) as error:
        raise _invalid() from error
    return origin, histories


def _decoded(packed: bytes) -> StreamOrigin:
    """Raises Refused for another version, whose other fields may be different."""
    version = msgspec.msgpack.decode(packed, type=_OriginVersion).version
    if version != VERSION:
        raise _refused(f"The continuation has version {version}; {VERSION} is known here.")
    return msgspec.msgpack.decode(packed, type=StreamOrigin)


def request_digest(request: GenerationRequest) -> bytes:
    """Of everything that shapes an answer but the seed and how long it may be, whatever replica prepares it.

    Fields that have their defaults are left out, so that a version with new ones has the same digest.
    """
    shape = _set_fields(request, dataclasses.fields(request), _OF_ONE_ANSWER)
    if request.parser is not None:
        shape["parser"] = _set_fields(request.parser, dataclasses.fields(request.parser))
    drawn = [
        (packed_ids(one.prompt), _set_fields(one.sampling, msgspec.structs.fields(one.sampling), _OF_ONE_SAMPLE))
        for one in request.requests[:: request.num_drawn]
    ]
    return _digest(msgspec.json.encode((shape, drawn), order="deterministic"))


def _set_fields(value: Any, fields: Sequence[Any], left_out: Collection[str] = ()) -> dict[str, Any]:
    found = {one.name: (getattr(value, one.name), one.default) for one in fields if one.name not in left_out}
    return {name: current for name, (current, default) in found.items() if current != default}


def _resumed(
    request: GenerationRequest, origin: StreamOrigin, histories: tuple[ChoiceHistory, ...]
) -> GenerationRequest:
    """Seeds count up within a prompt's choices, as they were made. The prompt's logprobs came before any token."""
    requests = []
    for number, (one, history) in enumerate(zip(request.requests, histories, strict=True)):
        prompt, choice = divmod(number, request.num_drawn)
        seed = (origin.seed + choice) & SEED_MASK
        shown = one.sampling.prompt_logprobs if not history.ids else -1
        sampling = msgspec.structs.replace(
            one.sampling, seed=seed, max_tokens=origin.max_tokens[prompt], prompt_logprobs=shown
        )
        requests.append(msgspec.structs.replace(one, sampling=sampling, generated=tuple(history.ids), admitted=True))
    return dataclasses.replace(
        request,
        answer_id=origin.answer_id,
        created=origin.created,
        requests=tuple(requests),
        histories=histories,
    )


def _split(piece: str) -> tuple[bytes, bytes]:
    """What a piece holds, and its signature."""
    try:
        raw = urlsafe_b64decode(piece.encode("ascii") + b"=" * (-len(piece) % 4))
    except ValueError as error:
        raise _invalid() from error
    return raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:]


def _signature(key: bytes, before: bytes, packed: bytes) -> bytes:
    return hashlib.blake2b(before + packed, key=key, digest_size=SIGNATURE_BYTES, person=b"kvasir-continue").digest()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _inflated(packed: bytes) -> bytes:
    return zlib.decompressobj(wbits=RAW_DEFLATE).decompress(packed, MAX_PIECE_BYTES)


def _invalid() -> Refused:
    return _refused("The continuation is damaged, or of a server with another key.")


def _refused(message: str) -> Refused:
    return Refused(openai_errors.invalid(message, param=CONTINUATION, code="invalid_continuation"))
