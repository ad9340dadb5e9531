"""Who sends a request, as far as its preparation and the engine need to know: the tenant, its salt, its urgency.

Made by the server for each request. What is cached of a tenant is found with its salt only, and so by itself only.
"""

from dataclasses import dataclass, field

from kvasir_api import tenants
from kvasir_runtime.frontend.protocol.generation import MAX_PRIORITY


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSender:
    """tenant: its name, "" where requests need no key. salt: of what is cached, b"" where that is shared.

    identity: what its requests and responses are known by among those of other tenants, b"" where there is one tenant.
    weight: share among tenants that wait. priority: in place of the body's; None where the body decides. most_urgent:
    the lowest priority that counts, whatever is requested. ttft_s: objective from the arrival to the first token, 0 for
    none. kv_peer: IP address and port of another replica that holds blocks of the request's text, of its first
    kv_peer_bytes as far as is known; "" for none. kv_peer_computes: that replica is to compute the prompt.
    """

    tenant: str = ""
    salt: bytes = field(default=b"", repr=False)
    identity: bytes = field(default=b"", repr=False)
    weight: float = 1.0
    priority: int | None = None
    most_urgent: int = -MAX_PRIORITY
    ttft_s: float = 0.0
    kv_peer: str = ""
    kv_peer_bytes: int = 0
    kv_peer_computes: bool = False

    def priority_of(self, of_body: int) -> int:
        """The priority that counts. of_body: `priority` of the request."""
        return max(self.most_urgent, of_body if self.priority is None else self.priority)

    def kv_peer_tokens(self, prompt_tokens: int, text_bytes: int) -> int:
        """How many of a prompt's tokens the peer probably holds, by how much of its text; at least 1."""
        return max(1, min(prompt_tokens, -(-prompt_tokens * self.kv_peer_bytes // max(1, text_bytes))))

    def cache_salt(self, of_body: str) -> bytes:
        """What separates the cache of this request from others'. of_body: `cache_salt` of the request."""
        return tenants.salt_of_request(self.salt, of_body)
