"""A simulator of routing: the gateway's own decisions before simulated pods."""
