"""The two prefix hashes: of blocks of tokens, known to the engine, and of pieces of request text, known to the gateway.

Both are chained, so that equal hashes mean equal prefixes, and both begin at a root that holds the adapter and the
salt, so that tenants with different salts never share. Neither depends on the process, the machine or the release of
Python: gateways and pods of different builds must agree. Nothing here knows a tokenizer, a cache or a route.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

BLOCK_HASH_BYTES: Final = 32
"""Wide, because a collision would show one tenant another's cache. The last OWNER_BYTES of them name the owner."""
OWNER_BYTES: Final = 8
"""Of every hash of a chain, so that every holder of blocks finds those of a tenant: the beginning of its salt."""
_DIGEST_BYTES: Final = BLOCK_HASH_BYTES - OWNER_BYTES
ROUTE_HASH_BYTES: Final = 8
"""Narrow, because thousands of them travel in digests and a collision only misroutes one request."""
PIECE_BYTES: Final = 256

_SAID: Final = {"role", "content", "type", "id", "status"}
_TEXT_PARTS: Final = {"text", "input_text", "output_text"}
_FIELD: Final = "\x1f"
_RECORD: Final = "\x1e"


def block_root(*, adapter: str = "", salt: bytes = b"", secret: bytes = b"") -> bytes:
    """Parent of a sequence's first block: what must be equal besides the tokens for KV to be shared.

    salt: of the tenant and the request; the owner of the blocks is its beginning. secret: of the service.
    """
    root = blake2b(_framed(adapter.encode(), secret + salt), digest_size=_DIGEST_BYTES, person=b"kvasir-block").digest()
    return root + owner_of_salt(salt)


def owner_of_salt(salt: bytes) -> bytes:
    """How blocks of requests with a salt are marked."""
    return salt[:OWNER_BYTES].ljust(OWNER_BYTES, b"\0")


def owner_of_block(block_hash: bytes) -> bytes:
    """The mark of a block, from its hash."""
    return block_hash[_DIGEST_BYTES:BLOCK_HASH_BYTES]


def block_hash(parent: bytes, tokens: Sequence[int], extra: bytes = b"") -> bytes:
    """Identity of one full block, chained so that equal hashes mean equal prefixes.

    parent: block_root() or the hash of the block before. tokens: all ids of the block, each below 2**32. extra: what
    else decides its KV, for example the hash of an image that lies in it.
    """
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return blake2b(parent + packed + extra, digest_size=_DIGEST_BYTES).digest() + parent[_DIGEST_BYTES:]


def extend_block_hashes(hashes: list[bytes], tokens: Sequence[int], *, root: bytes, block_size: int) -> None:
    """Append the hashes of the full blocks of tokens that hashes does not hold yet, in place.

    hashes[i] belongs to tokens[i * block_size : (i + 1) * block_size]; a partial last block gets none, since it is
    never shared.
    """
    parent = hashes[-1] if hashes else root
    for start in range(len(hashes) * block_size, len(tokens) - block_size + 1, block_size):
        parent = block_hash(parent, tokens[start : start + block_size])
        hashes.append(parent)


def prompt_block_hashes(packed: bytes, *, root: bytes, block_size: int) -> bytes:
    """The hashes of all full blocks of a prompt, one behind the other. packed: its ids as little-endian uint32."""
    found, parent, width, owner = [], root, 4 * block_size, root[_DIGEST_BYTES:]
    for start in range(0, len(packed) - width + 1, width):
        parent = blake2b(parent + packed[start : start + width], digest_size=_DIGEST_BYTES).digest() + owner
        found.append(parent)
    return b"".join(found)


def split_block_hashes(joined: bytes) -> list[bytes]:
    """What prompt_block_hashes() gave, one by one."""
    return [joined[start : start + BLOCK_HASH_BYTES] for start in range(0, len(joined), BLOCK_HASH_BYTES)]


def route_hashes(text: str | bytes, *, model: str, adapter: str = "", salt: bytes = b"") -> tuple[bytes, ...]:
    """Chained hashes of the full 256-byte pieces of a request's text in UTF-8; empty for a shorter text.

    text: request_text() of the body, or that in UTF-8 as `utf_8` writes it. Two requests with n equal leading hashes have at least n * 256 equal leading
    bytes, the same model, adapter and salt.
    """
    seed = _framed(model.encode(), adapter.encode(), salt)
    parent = blake2b(seed, digest_size=ROUTE_HASH_BYTES, person=b"kvasir-route").digest()
    encoded = utf_8(text) if isinstance(text, str) else text
    hashes = []
    for start in range(0, len(encoded) - PIECE_BYTES + 1, PIECE_BYTES):
        piece = encoded[start : start + PIECE_BYTES]
        parent = blake2b(parent + piece, digest_size=ROUTE_HASH_BYTES).digest()
        hashes.append(parent)
    return tuple(hashes)


def utf_8(text: str) -> bytes:
    """A text in UTF-8; lone surrogates, which JSON may have, are written as if they were characters."""
    return text.encode("utf-8", "surrogatepass")


def request_text(body: Mapping[str, object]) -> str:
    """Canonical text of a decoded body that generates, in the order in which templates lay it out.

    Tools come first, since chat templates put them before the conversation. Only what shapes the prompt counts:
    sampling parameters, user and stream do not. A chat has the same text whether it came as OpenAI's chat, as a
    response's input or as Anthropic's messages, as far as it consists of texts. Never raises on odd types, since the
    gateway calls it before anybody validated the body; what is not text is written as sorted JSON.
    """
    messages = _messages(body)
    if messages is None:
        return _text(body.get("prompt"))
    tools = body.get("tools")
    shown = [_tool(tool) for tool in tools] if isinstance(tools, list | tuple) else tools
    shaping = (shown, body.get("chat_template_kwargs"))
    parts = [_text(value) + _RECORD for value in shaping if value]
    parts += [_message(message) + _RECORD for message in messages]
    return "".join(parts)


def _messages(body: Mapping[str, object]) -> list[object] | None:
    """The messages of a chat, in whichever API's fields; None where it is none."""
    found, first = body.get("messages"), body.get("system")
    if "input" in body:
        found, first = body["input"], body.get("instructions")
        found = [{"role": "user", "content": found}] if isinstance(found, str) else found
    if not isinstance(found, list | tuple):
        return None
    return [{"role": "system", "content": first}, *found] if first else list(found)


def _tool(tool: object) -> object:
    """A function by what templates show of it; each API has it elsewhere."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return tool
    parameters = function.get("parameters", function.get("input_schema"))
    shown = {"name": function["name"], "description": function.get("description") or None, "parameters": parameters}
    return {name: value for name, value in shown.items() if value is not None}


def _message(message: object) -> str:
    if not isinstance(message, Mapping):
        return _text(message)
    rest = {key: value for key, value in message.items() if key not in _SAID and value is not None}
    if message.get("type", "message") != "message":
        rest["type"] = message["type"]
    fields = [_text(message.get("role")), _text(message.get("content"))]
    return _FIELD.join([*fields, _text(rest)] if rest else fields)


def _text(value: object) -> str:
    """A string as it is, text parts of a content list joined, None as nothing, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(part, Mapping) for part in value):
        return "".join(_part(part) for part in value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def _part(part: Mapping[str, object]) -> str:
    text = part.get("text")
    if isinstance(text, str) and part.get("type", "text") in _TEXT_PARTS:
        return text
    return json.dumps(part, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def _framed(*fields: bytes) -> bytes:
    """Fields with their lengths before them, so that no two different lists give the same bytes."""
    return b"".join(struct.pack("<I", len(field)) + field for field in fields)
