"""Offers computed blocks to later requests: to the prefix index, to the host, and to the digest that gateways read.

Owned by the scheduler, which calls it with every chunk that was collected.
"""

from kvasir_api.hashes import extend_block_hashes
from kvasir_runtime.core.block_tables import ABSENT
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.host_tier import HostTier
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.pending_prefixes import PendingPrefixes
from kvasir_runtime.core.plan_builder import LaunchedChunk
from kvasir_runtime.core.resident_prefixes import ResidentPrefixes
from kvasir_runtime.core.sequence import SequenceState


class PrefixPublisher:
    """pending: blocks that are about to be published. digest: route hashes of resident prefixes."""

    __slots__ = ("_host", "_limits", "_pool", "digest", "pending")

    def __init__(self, limits: Limits, pool: BlockPool, host: HostTier) -> None:
        self._limits, self._pool, self._host = limits, pool, host
        self.digest = ResidentPrefixes(pool)
        self.pending = PendingPrefixes(limits.least_blocks, limits.data_ranks)

    def extend_hashes(self, sequence: SequenceState) -> None:
        """Hash the full blocks of a sequence that have no hash yet."""
        limits = self._limits
        if limits.prefix_cache:
            extend_block_hashes(sequence.hashes, sequence.tokens, root=sequence.root, block_size=limits.block_size)

    def branch(self, sequence: SequenceState) -> int:
        """Where the sequence leaves what others have computed, in tokens; 0 where no layer has a state.

        A state is kept as of the ends of chunks. Other sequences begin alike, so this place is where one is of use, and
        most likely none ended a chunk there. After the checkpoints of Pan et al. 2024 (Marconi).
        """
        limits = self._limits
        if not (limits.has_states and limits.prefix_cache):
            return 0
        return self._pool.branch(sequence.hashes, len(sequence.tokens) // limits.block_size) * limits.block_size

    def publish(self, sequence: SequenceState, chunk: LaunchedChunk) -> None:
        """Offer the blocks that this chunk filled; only computed and collected ones come here."""
        limits = self._limits
        # What was planned behind a sample that a grammar deferred is not computed.
        full = min(chunk.end, len(sequence.tokens)) // limits.block_size
        if not limits.prefix_cache or full <= sequence.published:
            return
        self.extend_hashes(sequence)
        hashes = sequence.hashes[sequence.published : full]
        for group, table in enumerate(sequence.blocks.by_group):
            # A state is one of the end of the chunk, and of no other place.
            is_state = limits.attentions[group].kind == "state"
            first = full - (chunk.end == full * limits.block_size) if is_state else sequence.published
            for column in range(first, full):
                if table[column] != ABSENT:
                    self._pool.publish(table[column], sequence.hashes[column], group)
        self.pending.published(hashes, sequence.request.data_rank)
        self._host.add(hashes)
        sequence.published = full
        prompt_tokens = sequence.request.prompt_tokens
        if chunk.start < prompt_tokens <= chunk.end:
            prompt_blocks = prompt_tokens // limits.block_size
            self.digest.note(sequence.request.request.route_hashes, sequence.hashes[:prompt_blocks])

    def forget(self, owner: bytes) -> None:
        """Let no later request find what was offered up to now, neither here nor on the host.

        owner: only blocks with this mark, which the host drops by the next plans; b"" for all.
        """
        self._pool.forget(owner)
        self._host.forget(owner)
