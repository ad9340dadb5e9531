"""What counts as read is what the blocks hold, whatever texts join, grow, share and leave."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fakes.tiny_tokenizer import byte_fallback, byte_level
from fakes.tokenizer_families import family
from kvasir_api.hashes import block_root
from kvasir_runtime.core.plan import Join
from kvasir_runtime.runner.drafted_texts import DraftedTexts
from kvasir_runtime.runner.vocabulary_pair import WINDOW, TextVocabulary, VocabularyPair
from kvasir_runtime.wire import SamplingConfig

ROWS, LONGEST, BLOCK, BLOCKS = 3, 400, 8, 70
OURS, THEIRS = byte_level(), byte_fallback()
PAIR = VocabularyPair(*[TextVocabulary.of(one, one.get_vocab_size()) for one in (OURS, THEIRS)])
PAGE = "The engine reads a plan and the answers of the tokens. " * 6
TOKENS = tuple(OURS.encode(PAGE).ids)


def joining(row: int, tokens: Sequence[int], computed: int, tenant: str = "") -> Join:
    return Join(
        row=row,
        request_id="",
        tokens=tuple(tokens),
        prompt_tokens=len(tokens),
        computed_tokens=computed,
        tables=(),
        sampling=SamplingConfig(max_tokens=1),
        root=block_root(salt=tenant.encode()),
    )


class Texts(RuleBasedStateMachine):
    """A model that writes what it reads into blocks, as numbers in place of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = np.zeros((ROWS, LONGEST), dtype=np.int32)
        self.tables = np.zeros((ROWS, LONGEST // BLOCK), dtype=np.int64)
        self.texts = DraftedTexts(PAIR, self.ids, self.tables, BLOCK, BLOCKS)
        self.blocks = np.full((BLOCKS, BLOCK), -1)
        self.known: dict[int, list[int]] = {}

    @rule(
        row=st.integers(0, ROWS - 1),
        length=st.integers(1, 100),
        page=st.booleans(),
        shares=st.booleans(),
        cut=st.integers(0, 100),
    )
    def join(self, row: int, length: int, page: bool, shares: bool, cut: int = 0) -> None:
        tokens = TOKENS[:length] if page else TOKENS[length : 2 * length]
        computed = length // 4 * 4 if shares else 0
        self.texts.leave(row)
        self.texts.join(joining(row, tokens, min(computed, max(0, len(tokens) - 1))))
        self.known[row] = list(tokens[:cut])
        self.texts.follow(row, self.known[row])
        self.grow(row, list(tokens[cut:]))

    @rule(row=st.integers(0, ROWS - 1), tokens=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=6))
    def grow(self, row: int, tokens: list[int]) -> None:
        if row in self.known:
            self.known[row] += tokens
            self.texts.follow(row, tokens)

    @rule(row=st.integers(0, ROWS - 1), count=st.integers(1, 150), drafts=st.integers(0, 5))
    def read(self, row: int, count: int, drafts: int) -> None:
        if (one := self.texts.find(row)) is None:
            return
        end = min(one.num_ids, one.num_read + count)
        drafts = drafts if end == one.num_ids else 0
        end = min(end + drafts, LONGEST)
        self.ids[row, one.num_ids : one.num_ids + drafts] = 7
        if end > one.num_read and self.texts.reserve(row, end):
            for place in range(one.num_read, end):
                self.blocks[one.blocks[place // BLOCK], place % BLOCK] = self.ids[row, place]
            one.num_read = end
            self.texts.publish(row)

    @rule(row=st.integers(0, ROWS - 1))
    def leave(self, row: int) -> None:
        self.known.pop(row, None)
        self.texts.leave(row)

    @invariant()
    def blocks_hold_what_is_read(self) -> None:
        for row in self.known:
            one = self.texts.find(row)
            assert one is not None
            assert self.tables[row, : len(one.blocks)].tolist() == one.blocks
            held = self.blocks[one.blocks].ravel()[: one.num_read].tolist()
            assert held == self.ids[row, : one.num_read].tolist()
            whole = [*PAIR.theirs.prefix, *one.text.ids][:LONGEST]
            assert self.ids[row, : len(whole)].tolist() == whole


TestTexts = Texts.TestCase


def test_a_text_finds_what_another_has_read_as_far_as_the_model_shares_it() -> None:
    machine = Texts()
    machine.join(0, 100, True, False)
    machine.read(0, 400, 0)
    found = []
    for shares in (True, False):
        machine.join(1, 100, True, shares)
        one = machine.texts.find(1)
        assert one is not None
        found.append(one.num_read)
        machine.blocks_hold_what_is_read()
    assert found[0] > 100
    assert found[1] == 0


class ReadTexts:
    """Texts of a pair of which the first is read to its end by a tenant."""

    def __init__(self, pair: VocabularyPair, tokens: Sequence[int], num_blocks: int = 400) -> None:
        self.tokens = tokens
        ids, tables = np.zeros((2, 2000), dtype=np.int32), np.zeros((2, 2000 // BLOCK), dtype=np.int64)
        self.texts = DraftedTexts(pair, ids, tables, BLOCK, num_blocks)
        self.read(0)

    def read(self, row: int) -> None:
        self.texts.leave(row)
        self.texts.join(joining(row, self.tokens, 0, "a"))
        self.texts.follow(row, self.tokens)
        one = self.texts.find(row)
        assert one is not None
        assert self.texts.reserve(row, one.num_ids)
        one.num_read = one.num_ids
        self.texts.publish(row)

    def found(self, shared: int, tenant: str = "a") -> int:
        """Positions that count as read of the same text, of whose tokens the model shares so many."""
        self.texts.leave(1)
        self.texts.join(joining(1, self.tokens, shared, tenant))
        self.texts.follow(1, self.tokens)
        one = self.texts.find(1)
        assert one is not None
        return one.num_read


WORDS = "The engine reads a plan and the answers of the tokens. " * 20


@pytest.mark.parametrize("text", [WORDS, WORDS.replace("plan", "cafe\u0301")], ids=["bytes of its tokens", "others"])
def test_no_more_is_found_than_the_model_shares(text: str) -> None:
    """Also of a text that a tokenizer changes, so that no byte of it says which token it belongs to."""
    vocabularies = [TextVocabulary.of(one, one.get_vocab_size()) for one in (family("llama2"), family("qwen2"))]
    pair = VocabularyPair(*vocabularies)
    tokens = pair.ours.encoded(text.encode())
    texts = ReadTexts(pair, tokens)
    for shared in (8, 64, len(tokens) // 2, len(tokens) - 1):
        bytes_shared = pair.spelled(list(tokens[:shared]))
        most = len(pair.theirs.encoded(bytes_shared))
        assert max(0, most - 2 * BLOCK - 2 * WINDOW) <= texts.found(shared) <= most
        assert texts.found(shared, tenant="b") == 0


def test_what_was_read_once_leaves_nothing_behind_when_its_blocks_are_taken() -> None:
    texts = ReadTexts(PAIR, TOKENS[:300], num_blocks=130)
    for start in range(1, 40):
        texts.tokens = TOKENS[start : start + 300]
        texts.read(0)
    assert len(texts.texts._pool.lost) <= 130
