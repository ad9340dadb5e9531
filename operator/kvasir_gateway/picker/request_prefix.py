"""The text of a request and its route hashes, as the pod that gets it will compute them: never tokenized.

Pure; made by the picker for each request that generates.
"""

from collections.abc import Mapping
from typing import Final

from kvasir_api import hashes, http_apis, names, tenants
from kvasir_api.state import RuntimeState
from kvasir_gateway.block_peers import BYTES_PER_TOKEN
from kvasir_gateway.picker.request_parser import ParsedBody

GENERATING: Final = frozenset(
    {
        http_apis.CHATS,
        http_apis.COMPLETIONS,
        http_apis.RESPONSES,
        http_apis.ANTHROPIC,
        http_apis.OLLAMA + "/chat",
        http_apis.OLLAMA + "/generate",
    }
)
"""Paths whose prompts are kept in the cache."""


class RequestPrefix:
    """One request. headers: of the client, names in lower case."""

    def __init__(self, parsed: ParsedBody, path: str, headers: Mapping[str, str], *, body_bytes: int) -> None:
        self.session = headers.get(names.HEADER_SESSION, "")
        self.request_id = headers.get(names.HEADER_REQUEST_ID, "")
        self.most_output_tokens = parsed.most_output_tokens
        self.num_sequences = parsed.num_sequences
        self._headers, self._cache_salt = headers, parsed.cache_salt
        # A str takes four bytes for each character where one of them is an emoji, and held requests keep theirs.
        self._text = hashes.utf_8(hashes.request_text(parsed.shaping)) if path in GENERATING else b""
        self.num_tokens = (len(self._text) or body_bytes) / BYTES_PER_TOKEN
        self._hashes: dict[tuple[str, bytes], tuple[bytes, ...]] = {}

    def route_hashes(self, state: RuntimeState) -> tuple[bytes, ...]:
        """By the pod's own first name of the model, and its own rule for the salts of tenants."""
        salt = tenants.salt_of_request(self._tenant_salt(state), self._cache_salt)
        if (state.model, salt) not in self._hashes:
            self._hashes[state.model, salt] = hashes.route_hashes(self._text, model=state.model, salt=salt)
        return self._hashes[state.model, salt]

    def tenant(self, by_header: str) -> bytes:
        """The tenant under which the request waits: its name in that header, else its key. The replica verifies both
        later; the gateway does not."""
        name = self._headers.get(by_header, "") if by_header else ""
        return tenants.salt_of_name(name) if name else tenants.salt_of_key(_key(self._headers).encode("latin-1"))

    def _tenant_salt(self, state: RuntimeState) -> bytes:
        name = self._headers.get(state.prefixes.by_header, "") if state.prefixes.by_header else ""
        if name:
            return tenants.salt_of_name(name)
        key = _key(self._headers) if state.prefixes.by_key else ""
        return tenants.salt_of_key(key.encode("latin-1")) if key else b""


def _key(headers: Mapping[str, str]) -> str:
    """The key that a request presents; the pod says whether it is one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
