"""What a plan may use: the settings of the scheduler, fixed for the life of the engine."""

import msgspec

from kvasir_api import cache_groups
from kvasir_api.cache_groups import FULL, LayerAttention


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tokens, sequences and blocks. A struct, since the trace stores it for the replay.

    max_batch_tokens: query tokens of one step. max_sequences: rows of the runner. max_model_len: prompt plus answer.
    target_step_s: what a step that streams wait for should take in seconds, by measured cost; 0 for no such limit.
    min_step_tokens: below it reading the weights dominates the cost of a step, and smaller steps are hardly shorter.
    min_step_s: what every step takes in seconds, whatever it computes, because weights are copied in it.
    max_waiting: requests of several tenants that may wait; one tenant's are bounded before they come here.
    max_waiting_s: predicted time to the first token up to which a request may wait; max_waiting_tokens: prompt tokens
    that may wait to be computed; 0 for no bound.
    num_blocks: of the pool, for all cache groups together. attentions: one for each cache group.
    host_blocks: blocks that the second tier on the host holds; 0 without one. block_bytes: of one block, 0 where that
    is not known. hash_salt: secret from which hashes of blocks begin, so that no other service can guess them.
    speculation: who drafts tokens ahead, "off", "ngram", "suffix", "auto" for the last of them where it pays, "model"
    for the runner's draft model or head where it pays, "mtp" for the head in the model's own checkpoint.
    max_cached_answers: of each tenant, which "suffix" and "auto" draft from too. fetches_blocks: the runner fetches
    blocks of other replicas to the host. stages: that compute one step each at a time, of disjoint requests.
    data_ranks: data-parallel ranks, each of which has as many of the blocks; a sequence has those of one.
    """

    num_blocks: int
    block_size: int
    max_batch_tokens: int
    max_sequences: int
    max_model_len: int
    prefix_cache: bool = True
    target_step_s: float = 0.0
    min_step_tokens: int = 64
    min_step_s: float = 0.0
    eos_token_ids: tuple[int, ...] = ()
    attentions: tuple[LayerAttention, ...] = (FULL,)
    host_blocks: int = 0
    block_bytes: int = 0
    hash_salt: bytes = b""
    max_waiting: int = 0
    max_waiting_s: float = 0.0
    max_waiting_tokens: int = 0
    speculation: str = "off"
    max_cached_answers: int = 0
    fetches_blocks: bool = False
    stages: int = 1
    data_ranks: int = 1

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_batch_tokens", "max_sequences", "stages", "data_ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len is {self.max_model_len}, expected at least 2")

    @property
    def computes_whole(self) -> bool:
        """Whether every prompt is computed in one step and nothing of it is kept: by an encoder."""
        return cache_groups.keeps_nothing(self.attentions)

    @property
    def num_rows(self) -> int:
        """Sequences that run at a time: no more than tokens in a step, so that each of them moves in every step."""
        return min(self.max_sequences, self.max_batch_tokens)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds, each in all groups."""
        return self.tokens_of(self.num_blocks)

    @property
    def rank_blocks(self) -> int:
        """Blocks that a sequence may have: those of one data-parallel rank."""
        return self.num_blocks // self.data_ranks

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt plus answer of one sequence alone in the cache.

        The last token of an answer is never computed, so it needs no place.
        """
        return min(self.max_model_len, self._longest + 1)

    @property
    def max_pooled_tokens(self) -> int:
        """Longest prompt that nothing follows: its last token is computed too."""
        return min(self.max_model_len, self._longest)

    def tokens_of(self, num_blocks: int) -> int:
        """Capacity in tokens of so many blocks, a token being one in every group; rounded down."""
        return num_blocks * self.block_size // len(self.attentions)

    def blocks_of_sequence(self, num_tokens: int) -> int:
        """Blocks over all groups that a sequence of so many tokens holds at once at most."""
        return cache_groups.blocks_of_sequence(
            self.attentions, num_tokens, block_size=self.block_size, chunk_tokens=self.max_batch_tokens
        )

    @property
    def least_blocks(self) -> int:
        """Blocks of a prefix that are worth a wait: four, or as many as 64 tokens take where blocks are larger.

        Fewer are computed sooner than what is computed by another request, or copied from the host, comes.
        """
        return max(1, min(4, 64 // self.block_size))

    @property
    def hands_over(self) -> bool:
        """Whether a prompt may be computed by another replica, which gives its blocks, and for another one."""
        return self.fetches_blocks and self.prefix_cache and not self.has_states

    @property
    def has_states(self) -> bool:
        """Whether a layer has a state, which exists as of the end of a chunk and can be continued from there only."""
        return any(attention.kind == "state" for attention in self.attentions)

    @property
    def _longest(self) -> int:
        """Tokens of the longest sequence that the cache holds at every moment of its computation."""
        return cache_groups.longest_sequence(
            self.attentions,
            self.rank_blocks,
            block_size=self.block_size,
            chunk_tokens=self.max_batch_tokens,
            limit=self.max_model_len,
        )
