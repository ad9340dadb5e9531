"""The kinds of requests: what differs between generating, searching, pooling and scoring a prompt.

The scheduler above owns budget, rows, blocks and preemption, and knows only `interface.RequestKind`.
"""
