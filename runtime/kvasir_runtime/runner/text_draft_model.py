"""A small model of another vocabulary that drafts for the runner's model, before the step that verifies its drafts.

It reads the text of a row in tokens of its own. Behind the text it drafts in one of two ways, after Timor et al. 2025
(Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies):

- Where the likeliest token is taken, it writes tokens of its own, and their text is encoded in those of the model.
- Where tokens are drawn, or a request changes logits, it draws among the tokens that both have, as the request does and
  with the noise of the model's position, since a draft counts where it is the token that is drawn in its place.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kvasir_runtime.core.plan import Chunk, StepPlan
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.runner.draft_model import MOST_READ, NO_TOKEN, may_draft
from kvasir_runtime.runner.drafted_texts import DraftedText, DraftedTexts
from kvasir_runtime.runner.drafts import WRONG, with_drafts
from kvasir_runtime.runner.sampling.host_sampler import HostSampler
from kvasir_runtime.runner.state.host_state import HostRowState
from kvasir_runtime.runner.vocabulary_pair import VocabularyPair
from kvasir_runtime.wire import EngineFacts

MOST_PASSES: Final = 2
"""For each draft that is wanted: the draft model's tokens may be shorter than the model's."""
MOST_ENCODED: Final = 4096
"""Bytes that a step takes into texts beside 4 for each token that it computes: streams wait for it, about 4 ms."""


@dataclass(slots=True, eq=False)
class Drafting:
    """Drafts of one row on their way. chunk: of the plan. known: tokens of the row before the drafts.

    place: of the row's next token in those of the draft model. by_text: whether it writes tokens of its own. written:
    these. drafts: ids of the model.
    """

    chunk: Chunk
    known: int
    place: int
    by_text: bool
    written: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)

    @property
    def position(self) -> Chunk:
        """Where the row's next draft is drawn."""
        made = len(self.drafts)
        left = max(0, self.chunk.min_tokens_left - made)
        start = self.known + made - 1
        return Chunk(row=self.chunk.row, start=start, num_tokens=1, samples=True, min_tokens_left=left)


class TextDraftModel:
    """Implements `PlanDrafter` for all rows of one runner."""

    def __init__(
        self,
        model: Decoder,
        cache: KvCache,
        num_positions: int,
        pair: VocabularyPair,
        rows: HostRowState,
        sampler: HostSampler,
        facts: EngineFacts,
    ) -> None:
        """cache, num_positions, rows, sampler, facts: as in `DraftModel`. pair: ours of the runner's model."""
        self._model, self._cache, self._pair = model, cache, pair
        self._rows, self._sampler, self._max_tokens = rows, sampler, facts.max_batch_tokens
        num_rows, width = rows.arrays[0].shape
        self._longest = min(num_positions, 2 * width)
        self._own = HostRowState(
            max_sequences=num_rows,
            max_model_len=self._longest,
            block_size=cache.block_size,
            num_groups=1,
            eos_token_ids=(),
        )
        self._ids, (tables,), _ = self._own.arrays
        self._texts = DraftedTexts(pair, self._ids[:, : self._longest], tables, cache.block_size, cache.blocks.shape[0])
        self._num_bytes = np.array([len(one) for one in pair.ours.bytes_of])
        self._to_theirs = torch.from_numpy(pair.to_theirs)

    def draft(self, plan: StepPlan) -> tuple[StepPlan, dict[int, int]]:
        """As in `PlanDrafter`."""
        for row in plan.leaves:
            self._texts.leave(row)
        for join in plan.joins:
            self._texts.leave(join.row)
            if may_draft(join):
                self._texts.join(join)
        for fork in plan.forks:
            self._texts.leave(fork.row)
        reading, drafting, in_vain = self._unread(plan)
        begun, chunks = [*drafting, *in_vain], reading
        while chunks:
            logits = self._logits(chunks)
            for chunk in chunks:
                text = self._texts.find(chunk.row)
                assert text is not None
                text.num_read = chunk.start + chunk.num_tokens
            drafting = self._write(logits, drafting)
            chunks = [Chunk(row=one.chunk.row, start=one.place - 1, num_tokens=1, samples=True) for one in drafting]
        for chunk in reading:
            self._texts.publish(chunk.row)
        made: dict[int, list[int]] = {chunk.row: [] for chunk in plan.chunks if chunk.num_undrafted}
        for one in begun:
            made[one.chunk.row] = one.drafts
            self._rows.write_tokens(one.chunk.row, one.known, one.drafts)
        missing = {
            chunk.row: chunk.num_undrafted - len(made[chunk.row])
            for chunk in plan.chunks
            if chunk.num_undrafted > len(made.get(chunk.row, ()))
        }
        return with_drafts(plan, made), missing

    def _unread(self, plan: StepPlan) -> tuple[list[Chunk], list[Drafting], list[Drafting]]:
        """What is to be read, in one pass; those that are read to their end then, and for which drafts are planned;
        those for which none can be made, of a text that is too long or has no room.

        Rows of which least is unread come first. Of a text whose beginning is still sought among those that were read
        nothing is read.
        """
        found = self._followed(plan)
        room = min(self._max_tokens, plan.num_tokens + MOST_READ)
        reading, drafting, in_vain = list[Chunk](), list[Drafting](), list[Drafting]()
        for chunk, text, known in sorted(found, key=lambda one: one[1].num_ids - one[1].num_read):
            num_ids = text.num_ids
            samples = chunk.num_undrafted > 0 and text.text.num_tokens == known and text.text.is_whole
            if samples and num_ids >= self._longest:
                in_vain.append(_in_vain(chunk, known))
                continue
            if samples:
                text.num_read = min(text.num_read, num_ids - 1)  # the last is computed, to draw behind it
            further = MOST_PASSES * len(chunk.drafts) if samples else 0
            if text.is_sought:
                continue
            if not self._texts.reserve(chunk.row, min(num_ids + further, self._longest)):
                if chunk.num_undrafted:
                    in_vain.append(_in_vain(chunk, known))
                continue
            start, end = text.num_read, min(num_ids, self._longest, text.num_read + room)
            if end <= start:
                continue
            samples, room = samples and end == num_ids, room - (end - start)
            reading.append(Chunk(row=chunk.row, start=start, num_tokens=end - start, samples=samples))
            if samples:
                by_text = self._rows.all_greedy([chunk]) and not self._sampler.affect([chunk])
                drafting.append(Drafting(chunk=chunk, known=known, place=num_ids, by_text=by_text))
        return reading, drafting, in_vain

    def _followed(self, plan: StepPlan) -> list[tuple[Chunk, DraftedText, int]]:
        """Chunks whose rows have a text that is to be read, with the number of tokens that are certain.

        Texts take these in, where they lack few first.
        """
        found = []
        for chunk in plan.chunks:
            text = self._texts.find(chunk.row)
            if text is not None and self._reads(chunk, follows=plan.drafter_follows):
                known = max(text.joined, chunk.start + chunk.num_tokens - len(chunk.drafts))
                found.append((chunk, text, known))
        room = 4 * plan.num_tokens + MOST_ENCODED
        for chunk, text, known in sorted(found, key=lambda one: one[2] - one[1].text.num_tokens):
            first = text.text.num_tokens
            tokens = self._rows.arrays[0][chunk.row, first : min(known, first + room)]
            ends = np.cumsum(self._num_bytes[tokens])
            if count := min(len(tokens), 1 + int(np.searchsorted(ends, room))):
                room = max(0, room - int(ends[count - 1]))
                self._texts.follow(chunk.row, tokens[:count].tolist())
        return found

    @staticmethod
    def _reads(chunk: Chunk, *, follows: bool) -> bool:
        """Whether a row is read with a chunk: because drafts follow, or as a prompt."""
        return chunk.num_undrafted > 0 or (follows and chunk.num_tokens - len(chunk.drafts) > 1)

    def _logits(self, chunks: list[Chunk]) -> Tensor:
        """(chunks that sample, vocabulary of the draft model)."""
        batch = self._own.model_input(chunks).batch
        return self._model.logits_of(self._model.forward(batch, self._cache))

    def _write(self, logits: Tensor, drafting: list[Drafting]) -> list[Drafting]:
        """The next token of each row. Returns those that go on; others have their drafts. logits: one for each."""
        if not drafting:
            return []
        free = [place for place, one in enumerate(drafting) if one.by_text]
        drawn = [place for place, one in enumerate(drafting) if not one.by_text]
        ids: dict[int, int] = dict(zip(free, logits[free].argmax(-1).tolist(), strict=True)) if free else {}
        if drawn:
            common = functional.pad(logits[drawn], (0, 1), value=NO_TOKEN)[:, self._to_theirs]
            positions = [drafting[place].position for place in drawn]
            ids |= dict(zip(drawn, self._sampler.sample(common, positions, {}).tolist(), strict=True))
        return [
            one
            for place, one in enumerate(drafting)
            if (self._wrote(one, ids[place]) if one.by_text else self._drew(one, ids[place]))
        ]

    def _wrote(self, one: Drafting, token: int) -> bool:
        """A row goes on with a token of the draft model. False where that ends its drafts."""
        wanted, theirs = len(one.chunk.drafts), self._pair.theirs
        ends = token in theirs.specials
        if not ends or token in self._pair.shared_specials:
            one.written.append(token)
        full = one.place + 1 >= self._longest or len(one.written) >= MOST_PASSES * wanted
        if ends or full or len(one.written) >= wanted:
            text = self._texts.find(one.chunk.row)
            assert text is not None
            # Where no token of the model begins behind the text, what drafting has cost was in vain.
            one.drafts = (text.text.drafts(one.written) or [WRONG])[:wanted]
            if ends or full or len(one.drafts) == wanted:
                return False
        self._place(one, token)
        return True

    def _drew(self, one: Drafting, token: int) -> bool:
        """A row goes on with a token of the model. False where that ends its drafts."""
        token = max(0, token)  # below 0 where the logits are not finite
        self._rows.write_tokens(one.chunk.row, one.known + len(one.drafts), (token,))
        one.drafts.append(token)
        own = int(self._pair.to_theirs[token])
        if len(one.drafts) == len(one.chunk.drafts) or own == len(self._pair.theirs.bytes_of):
            return False
        if one.place + 1 >= self._longest:
            return False
        self._place(one, own)
        return True

    def _place(self, one: Drafting, token: int) -> None:
        """Write a token of the draft model behind those of a row."""
        self._ids[one.chunk.row, one.place] = token
        one.place += 1


def _in_vain(chunk: Chunk, known: int) -> Drafting:
    return Drafting(chunk=chunk, known=known, place=0, by_text=True, drafts=[WRONG])
