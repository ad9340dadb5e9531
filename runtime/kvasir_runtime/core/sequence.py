"""One sequence of tokens with its row and its blocks: the prompt and answer of a request, or one of its beams.

Two lengths drive everything: `computed` chases `known`. Both are projected: they count what launched plans will have
done once they are collected, so that a plan can be made while another is still in flight.
"""

from collections.abc import MutableSequence
from dataclasses import dataclass, field

from kvasir_runtime.core.block_tables import BlockTables
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.speculation.acceptance import SequenceDrafts
from kvasir_runtime.core.speculation.recent_answers import TenantAnswers

Tokens = MutableSequence[int]


@dataclass(slots=True, eq=False)
class SequenceState:
    """Mutable; never leaves the core.

    tokens: prompt and collected answer; an array where the prompt came as one. root, hashes: identity of the full
    blocks of tokens, as far as it was needed. active: it holds a row and blocks; results for one that does not are
    discarded. branch: tokens that others have begun with too, where a layer has a state that none of them has kept.
    in_flight: samples that are launched and not collected. computed: positions whose KV exists once
    every launched plan is collected. published: full blocks that were offered to the prefix index. last_step: of
    the last plan that names its blocks. drafts: what may follow its tokens, for the plan that is being made.
    unverified: drafts that are launched, which count for nothing before they are collected. deferred: the sample behind
    its last token was deferred. speculated: what drafts were made of, None where none were. answers: of its tenant,
    which drafts are made of too and its own will be one of; None where none are kept.
    """

    request: RequestState
    root: bytes
    tokens: Tokens
    hashes: list[bytes] = field(default_factory=list)
    active: bool = False
    row: int = -1
    blocks: BlockTables = field(default_factory=BlockTables)
    in_flight: int = 0
    computed: int = 0
    branch: int = 0
    published: int = 0
    last_step: int = -1
    drafts: tuple[int, ...] = ()
    unverified: int = 0
    deferred: bool = False
    speculated: SequenceDrafts | None = None
    answers: TenantAnswers | None = None

    @property
    def known(self) -> int:
        """Tokens that the runner knows once every launched plan is collected."""
        return len(self.tokens) + self.in_flight
