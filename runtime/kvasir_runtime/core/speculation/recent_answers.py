"""Recent answers as texts to draft from: those to requests of the same tenant, and of no other.

Owned by speculation. A sequence is bound to the answers of its tenant when it begins to run; its own joins them when it
ends, unless they were forgotten meanwhile. Beside the ids all places of every two of them are kept in order, so that a
search looks at the places of one pair only. Memory is bounded, and a tenant displaces others' answers only where it has
most of them.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvasir_api.hashes import owner_of_block
from kvasir_runtime.core.speculation.drafters import LONGEST_END, Draft, elected_draft, longest_ends

PROMPT_TOKENS: Final = 8
"""Of the prompt before an answer that are kept with it, so that its beginning is drafted too."""
MAX_TOKENS: Final = 65_536
"""Kept of the answers of one tenant; MAX_ANSWER_TOKENS: of one answer, its last."""
MAX_ANSWER_TOKENS: Final = 16_384
MAX_TOKENS_OF_ALL: Final = 1_048_576
"""Of all tenants, 12 bytes each."""
TENANT_TOKENS: Final = 1024
"""As so many counts a tenant of which answers are kept, however few."""
MOST_VOTES: Final = 32
"""Occurrences, the last of them, whose rests are counted for a draft."""
END: Final = -1
"""Behind each answer."""
_SECOND: Final = 17
_FIRST: Final = 40
_PLACES: Final = (1 << _SECOND) - 1
"""A code is one number for the first id of a pair, the second (23 bits each) and the place behind them."""


class TenantAnswers:
    """Answers to requests of one tenant that have the same salt. is_open: False once they were forgotten or displaced:
    they are empty from then on.
    """

    __slots__ = ("_codes", "_ids", "is_open", "num_answers")

    def __init__(self) -> None:
        self.is_open, self.num_answers = True, 0
        self._ids: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._codes: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        """Ascending."""

    @property
    def num_tokens(self) -> int:
        """That are kept, with one behind each answer."""
        return len(self._ids)

    def longer(self, draft: Draft, text: NDArray[np.int32], most: int) -> Draft:
        """How answers went on where a longer end of the text occurred than the one that the draft follows from, else
        the draft. most: tokens of it.
        """
        if not len(self._codes) or len(text) < 2 or draft.matched >= LONGEST_END:
            return draft
        code = (int(text[-2]) << _FIRST) + (int(text[-1]) << _SECOND)
        first, last = np.searchsorted(self._codes, (code, code + _PLACES))
        places, matched = longest_ends(self._ids, self._codes[first:last] & _PLACES, 2, text, LONGEST_END)
        if matched <= draft.matched:
            return draft
        found = elected_draft(self._ids, places[-MOST_VOTES:], matched, most)
        return found if found.tokens else draft

    def add(self, tokens: Sequence[int], most: int) -> None:
        """One more, at least two ids, in place of the oldest where there are most or no room is left."""
        fresh = np.array(tokens[-MAX_ANSWER_TOKENS:], dtype=np.int64)
        self._make_room(len(fresh) + 1, most - 1)
        places = np.arange(2, len(fresh) + 1) + len(self._ids)
        codes = (fresh[:-1] << _FIRST) + (fresh[1:] << _SECOND) + places
        codes.sort()
        self._codes = np.insert(self._codes, np.searchsorted(self._codes, codes), codes)
        self._ids = np.concatenate((self._ids, fresh.astype(np.int32), np.array([END], dtype=np.int32)))
        self.num_answers += 1

    def clear(self) -> None:
        """Empty for good."""
        self.is_open, self.num_answers = False, 0
        self._ids, self._codes = self._ids[:0].copy(), self._codes[:0].copy()

    def _make_room(self, num_tokens: int, most: int) -> None:
        """For so many tokens, and so that there are at most so many answers."""
        ends = np.flatnonzero(self._ids == END) + 1
        excess = len(self._ids) + num_tokens - MAX_TOKENS
        count = max(self.num_answers - most, int(np.searchsorted(ends, excess)) + 1 if excess > 0 else 0)
        if count > 0:
            cut = int(ends[count - 1])
            self._ids = self._ids[cut:].copy()
            self._codes = self._codes[(self._codes & _PLACES) > cut] - cut
            self.num_answers -= count


class RecentAnswers:
    """Of all tenants. most: answers of each."""

    __slots__ = ("_kept", "_most", "num_answers", "num_tokens")

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, bytes], TenantAnswers] = OrderedDict()
        """By tenant and root of the hashes of its blocks, which follows from the salt; last used last."""
        self.num_answers = self.num_tokens = 0

    def of(self, tenant: str, root: bytes) -> TenantAnswers:
        """Those that a request may be drafted from, and its own answer is added to."""
        if (tenant, root) not in self._kept:
            self._kept[tenant, root] = TenantAnswers()
            self._displace()
        self._kept.move_to_end((tenant, root))
        return self._kept[tenant, root]

    def add(self, answers: TenantAnswers, tokens: Sequence[int]) -> None:
        """An answer ended, and is kept unless what it could be kept with was forgotten since it began."""
        if answers.is_open and len(tokens) > 1:
            self._count(answers, -1)
            answers.add(tokens, self._most)
            self._count(answers, 1)
            self._displace()

    def forget(self, owner: bytes) -> None:
        """What is kept, also of answers that have begun. owner: only where blocks have this mark; b"" for all."""
        for tenant, root in list(self._kept):
            if not owner or owner_of_block(root) == owner:
                self._drop(tenant, root)

    def _displace(self) -> None:
        """Of the tenant that has most, what was used least recently, as long as there is too much."""
        while self.num_tokens + TENANT_TOKENS * len(self._kept) > MAX_TOKENS_OF_ALL:
            sizes: Counter[str] = Counter()
            for (tenant, _), answers in self._kept.items():
                sizes[tenant] += TENANT_TOKENS + answers.num_tokens
            most = max(sizes.values())
            self._drop(*next(key for key in self._kept if sizes[key[0]] == most))

    def _drop(self, tenant: str, root: bytes) -> None:
        answers = self._kept.pop((tenant, root))
        self._count(answers, -1)
        answers.clear()

    def _count(self, answers: TenantAnswers, sign: int) -> None:
        self.num_answers += sign * answers.num_answers
        self.num_tokens += sign * answers.num_tokens
