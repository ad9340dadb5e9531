"""Blocks of the KV cache between replicas of a service, from the host's tier of one to that of another."""
