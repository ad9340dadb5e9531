"""Pod addresses: which one the next pod gets."""

from ipaddress import IPv4Network

LOOPBACK = IPv4Network("127.0.0.0/8")


def network(cidr: str) -> IPv4Network:
    """The pod network. ValueError unless it lies in 127.0.0.0/8 and leaves room for pods beside 127.0.0.1."""
    found = IPv4Network(cidr)
    if not found.subnet_of(LOOPBACK):
        raise ValueError(f"pod network {cidr} must lie in 127.0.0.0/8: pods are processes of this machine")
    if found.prefixlen > 29 or "127.0.0.1" in map(str, [next(found.hosts())]):
        raise ValueError(f"pod network {cidr} must hold at least six addresses and not begin with 127.0.0.1")
    return found


def choose(pods: IPv4Network, taken: frozenset[str], last: str | None) -> str | None:
    """The next free address after `last`, so that an address rests before it is used again; None when all are taken."""
    hosts = [str(host) for host in pods.hosts()]
    start = hosts.index(last) + 1 if last in hosts else 0
    return next((host for host in hosts[start:] + hosts[:start] if host not in taken), None)
