"""Drafts for the sequences of the next step, and what becomes of them. Owned by the scheduler.

"ngram" and "suffix" draft in every step of decoding; with "auto" and a draft model a controller decides. Beside a draft
model the text is searched too, and of each sequence the likelier draft counts; steps without drafts of the model have a
controller of their own, since they cost less. Nothing here changes an answer: the runner keeps the drafts that it would
have drawn. Knows neither clock nor device: seconds are given.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kvasir_api import state_copies
from kvasir_api.state import SpeculationState
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.counters import Counters
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import UNDRAFTED, StepResults
from kvasir_runtime.core.plan_builder import LaunchedChunk
from kvasir_runtime.core.speculation import kept_states
from kvasir_runtime.core.speculation.acceptance import KEPT, KEPT_BY_ALL, AcceptanceRates, SequenceDrafts, class_of
from kvasir_runtime.core.speculation.controller import DraftController
from kvasir_runtime.core.speculation.drafters import NO_DRAFT, Drafter, ModelDrafter, NgramDrafter, SuffixDrafter
from kvasir_runtime.core.speculation.recent_answers import PROMPT_TOKENS, RecentAnswers
from kvasir_runtime.core.step_prompts import lacking
from kvasir_runtime.core.throughput import DecayingMean

MAX_DRAFTS: Final = 31
"""Of a sequence in a step, from the text, where a controller drafts for FEW sequences or less, by what such steps are
measured to take.
"""
DRAFTS_OF_MANY: Final = 15
"""Of a sequence otherwise. With the token before them they fill one tile of 16 rows, which costs AMX as much as one."""
FEW: Final = 2
RETRY_STEPS: Final = 16
"""Steps after which a model's draft that was not worth it is tried again for a sequence, which costs less than 1 %
where it adds less than a sixth to a step; where it adds more it is tried more rarely.
"""
READ_PER_STEP: Final = 2
"""Tokens that a model may read for such trials, for each step: all that one or two streams get."""
MOST_UNREAD: Final = 1 << 14
"""Tokens of a sequence; one of which a model has to read more, or did not in MOST_BEHIND steps, has no drafts of it."""
MOST_BEHIND: Final = 512
FEW_READING: Final = 1 / 8
"""Of the sequences with drafts, those for which a model may still read in a step that is measured."""
LEAST_REST: Final = 128
MOST_REST: Final = LEAST_REST << 10
"""Steps without drafts after one with drafts found no memory: it costs all that its requests have computed."""
MOST_FORCED: Final = 1 + DRAFTS_OF_MANY
"""Tokens of a sequence that a step computes beside drafts of others: no more than it could have as drafts."""
FROM_TEXTS: Final = ("auto", "suffix")
"""Of what limits name, what drafts from recent answers too."""
BY_RUNNER: Final = ("model", "mtp")
"""Of what limits name, what drafts in the runner."""
NONE_PAYS: Final = "by what steps were measured to take, drafts would cost more than they bring"
"""Why there are none; until one is verified again."""
KEPT_BY_STATE: Final = 0.98
"""Of what `/state` reports, at each step with drafts."""


class Speculation:
    """drafter: in place of the one that the limits name. drafter_follows: whether a draft model computes the prompts of
    the next step, so that it can draft behind them.
    """

    def __init__(self, limits: Limits, counters: Counters, drafter: Drafter | None = None) -> None:
        self._limits, self._counters = limits, counters
        self.drafter_follows = False
        named: dict[str, Drafter] = {"ngram": NgramDrafter(), "suffix": SuffixDrafter(), "auto": SuffixDrafter()}
        named |= dict.fromkeys(BY_RUNNER, ModelDrafter())
        self._drafter = drafter or named.get(limits.speculation)
        by_model = limits.speculation in BY_RUNNER
        self._controller = DraftController(reads=by_model) if by_model or limits.speculation == "auto" else None
        """Of steps with drafts of the model where there is one; beside it texts have their own."""
        self._beside_model = SuffixDrafter() if drafter is None and limits.speculation in BY_RUNNER else None
        self._of_texts = DraftController() if self._beside_model is not None else self._controller
        keeps = limits.max_cached_answers > 0 and self._drafter is not None and limits.speculation in FROM_TEXTS
        self._answers = RecentAnswers(limits.max_cached_answers) if keeps else None
        self._rates = AcceptanceRates()
        self._accepted, self._drafted = DecayingMean(), DecayingMean()
        self._num_steps = dict.fromkeys(("none", "text", "model"), 0)
        """Of decoding alone, by what drafted."""
        self._most = max(limits.num_rows, 1 + MAX_DRAFTS)
        """Positions that a step may sample from: there is memory for the logits of all rows."""
        self._most_with_state = state_copies.num_rows(limits.attentions, limits.block_bytes)
        self._rest, self._next_rest = 0, LEAST_REST
        self._trial: RequestKind | None = None
        """For which a model's draft was tried again last."""
        self._untried = self._may_read = 0
        """Steps since then, and tokens that the model may read for the next one."""
        self._why = ""

    def draft(self, running: Collection[RequestKind], budget: int, pool: BlockPool) -> None:
        """Set the drafts of all sequences for the next step. budget: its query tokens, 0 where it may compute prompts
        of requests that wait.
        """
        if self._drafter is None:
            return
        for kind in running:
            kind.sequence.drafts = ()
            if self._answers is not None and kind.sequence.answers is None:
                kind.sequence.answers = self._answers.of(kind.request.request.tenant, kind.sequence.root)
        # What a draft costs beside prompts is not measured, and blocks for it could be theirs.
        able = [] if _computes_prompts(running) else [kind for kind in running if self._may_draft(kind)]
        num_rows = sum([kind.num_rows for kind in running])
        if self._limits.speculation in BY_RUNNER and self._controller is not None:
            self.drafter_follows = not self._controller.is_off(num_rows)
        num_forced = sum([max(0, lacking(kind) - 1) for kind in running])
        room = min(budget - num_forced, self._most) - num_rows
        if room < 1 or not able or self._rest:
            return
        if (counts := self._counts(able, num_rows, room)) is None:
            return
        for kind, count in zip(able, counts, strict=True):
            drafts = _drafts_of(kind)
            count = min(count, room)
            room -= count
            drafts.tries(count)
            kind.sequence.drafts = drafts.draft.tokens[:count]
        # For a guess no request loses its row. What is injected becomes a prompt as its need is counted.
        if not _have_room(running, budget, pool) or _computes_prompts(running):
            for kind in able:
                kind.sequence.drafts = ()

    def _counts(self, able: Sequence[RequestKind], num_rows: int, room: int) -> list[int] | None:
        """How many tokens of their drafts sequences verify in the next step; None where none is looked for."""
        drafter, model = self._drafter, None
        if self._controller is None or self._of_texts is None:
            self._look(drafter, able)
            return [len(_drafts_of(kind).draft.tokens) for kind in able]
        rests = self._controller.rests(num_rows)
        if self._beside_model is not None:
            is_off, texts_rest = self._controller.is_off(num_rows), self._of_texts.rests(num_rows)
            drafter, model = None if texts_rest else self._beside_model, None if rests else drafter
            rests = texts_rest if is_off else rests  # where it is not off, this is the step without drafts
        if rests:
            return None
        self._look(drafter, able, model)
        unread = {
            place: _num_unread(kind)
            for place, kind in enumerate(able)
            if _drafts_of(kind).draft.tokens[:1] == (UNDRAFTED,)
        }
        controller = self._controller if unread else self._of_texts
        survivals = [_drafts_of(kind).survivals(unread.get(place, 0)) for place, kind in enumerate(able)]
        counts = controller.counts(num_rows, survivals, room, unread)
        tried = self._tried_again(able, unread, num_rows) if unread else None
        if tried is not None:
            counts[tried] = max(1, counts[tried])
        if any(counts):
            self._why = ""
        elif controller.is_off(num_rows):
            self._why = NONE_PAYS
        return counts

    def _tried_again(self, able: Sequence[RequestKind], unread: Mapping[int, int], num_rows: int) -> int | None:
        """The place of the sequence for which the draft model drafts though that was not worth it; None where it is not
        time. It goes on until the model has read the sequence.

        It is the one that waited longest of those of which no more is to be read than steps have allowed since.
        """
        assert self._controller is not None
        self._untried, self._may_read = self._untried + 1, min(MOST_UNREAD, self._may_read + READ_PER_STEP)
        if self._trial is not None:
            place = next((place for place in unread if able[place] is self._trial), None)
            if place is not None and _drafts_of(able[place]).behind:
                return place
            self._trial = None
        if self._untried < RETRY_STEPS * self._controller.rarity(num_rows):
            return None
        waiting = [place for place, num in unread.items() if num <= self._may_read and _drafts_of(able[place]).untried]
        place = max(waiting, key=lambda one: _drafts_of(able[one]).untried, default=None)
        if place is not None:
            self._trial, self._untried, self._may_read = able[place], 0, self._may_read - unread[place]
        return place

    def rest(self) -> None:
        """A step with drafts found no memory: those that follow have none, twice as many each time."""
        self._rest, self._next_rest = self._next_rest, min(MOST_REST, 2 * self._next_rest)

    def collected(self, chunks: Sequence[LaunchedChunk], results: StepResults, elapsed_s: float) -> None:
        """A step of these chunks ended, after so many seconds."""
        if self._drafter is None:
            return
        self._rest = max(0, self._rest - bool(chunks))
        num_drafts = num_drafting = num_reading = 0
        if any(chunk.drafts for chunk in chunks):
            sampling = [chunk for chunk in chunks if chunk.samples]
            for chunk, sampled in zip(sampling, results.sampled, strict=True):
                if (num_made := len(chunk.drafts) - sampled.undrafted) and sampled.tokens:
                    self._verified(chunk, num_made, sampled.accepted)
                num_drafts += len(chunk.drafts) if num_made else 0
                if chunk.drafts and (drafts := chunk.sequence.speculated) is not None:
                    num_drafting, num_reading = num_drafting + 1, num_reading + (not num_made or drafts.behind > 0)
                    drafts.behind = 0 if num_made else drafts.behind + 1
                    drafts.num_read = len(chunk.sequence.tokens) if num_made else drafts.num_read
        # A step in which a draft model still read what was before costs what others do not.
        is_read = num_reading <= num_drafting * FEW_READING
        most = MOST_FORCED if self._limits.has_states else 1
        decodes = bool(chunks) and is_read and all(chunk.end - chunk.start <= most for chunk in chunks)
        by_model = decodes and any(chunk.drafts[:1] == (UNDRAFTED,) for chunk in chunks)
        if decodes:
            self._num_steps["model" if by_model else "text" if num_drafts else "none"] += 1
        if self._controller is not None and self._of_texts is not None and decodes and elapsed_s > 0:
            level = num_drafts + sum([chunk.end - chunk.start - 1 for chunk in chunks])
            if by_model or not level or self._beside_model is None:
                self._controller.observe(len(chunks), level, elapsed_s)
            if not by_model and self._beside_model is not None:
                self._of_texts.observe(len(chunks), level, elapsed_s)

    def ended(self, kind: RequestKind) -> None:
        """A request has its answer, or as much as there will be of it."""
        sequence, request = kind.sequence, kind.request
        if self._answers is not None and sequence.answers is not None and request.request.beam is None:
            self._answers.add(sequence.answers, sequence.tokens[max(0, request.prompt_tokens - PROMPT_TOKENS) :])

    def forget(self, owner: bytes) -> None:
        """Draft from no answer that began before. owner: only of requests with this mark; b"" for all."""
        if self._answers is not None:
            self._answers.forget(owner)

    @property
    def state(self) -> SpeculationState:
        """What `/state` reports."""
        return SpeculationState(
            drafter=self._limits.speculation,
            why=self._why,
            draft_tokens=self._drafted.value,
            acceptance_fraction=self._accepted.value,
            cached_answers=self._answers.num_answers if self._answers is not None else 0,
            cached_tokens=self._answers.num_tokens if self._answers is not None else 0,
            undrafted_steps=self._num_steps["none"],
            text_steps=self._num_steps["text"],
            model_steps=self._num_steps["model"],
        )

    def _verified(self, chunk: LaunchedChunk, num_drafts: int, accepted: int) -> None:
        drafts = chunk.sequence.speculated
        self._counters.drafted_tokens += num_drafts
        self._counters.accepted_tokens += accepted
        self._accepted.add(accepted, num_drafts, KEPT_BY_STATE)
        self._drafted.add(num_drafts, 1.0, KEPT_BY_STATE)
        assert drafts is not None
        place = class_of(drafts.draft)
        # A draft that the draft model could not make counts as a wrong one: the step was to have it.
        tried = min(len(chunk.drafts), accepted + 1)
        drafts.rates.verified(place, tried, accepted, KEPT)
        self._rates.verified(place, tried, accepted, KEPT_BY_ALL)

    def _look(self, drafter: Drafter | None, able: Collection[RequestKind], model: Drafter | None = None) -> None:
        """Draft for sequences, where there are states for as many as can be copied.

        drafter: for those that do not rest. model: for all.
        """
        weighs = self._limits.speculation == "auto" or self._beside_model is not None
        takes_long = weighs and len(able) <= FEW and not self._limits.has_states
        longest = MAX_DRAFTS if takes_long else DRAFTS_OF_MANY
        for kind in able:
            sequence = kind.sequence
            if sequence.speculated is None:
                sequence.speculated = SequenceDrafts(AcceptanceRates(self._rates))
                if self.drafter_follows:
                    sequence.speculated.num_read = len(sequence.tokens)
            drafts = sequence.speculated
            # Each draft that is kept and the token behind them must have a place in the answer.
            most = min(longest, kind.remaining - 1)
            if self._limits.has_states:
                size = self._limits.block_size
                most = min(most, kept_states.most_drafts(sequence.computed, len(sequence.tokens), size))
            of_model = NO_DRAFT
            if model is not None and drafts.behind < MOST_BEHIND and _num_unread(kind) <= MOST_UNREAD:
                of_model = model.propose(drafts.history, min(most, DRAFTS_OF_MANY))
            if drafter is None or (drafts.rest and self._controller is not None):
                drafts.rest = max(0, drafts.rest - 1)
                drafts.draft = of_model
                continue
            drafts.follow(sequence.tokens, self._rates)
            found = drafter.propose(drafts.history, most)
            if sequence.answers is not None:
                if not sequence.answers.is_open:  # what the copy goes on from may be forgotten with them
                    drafts.copy.follow(NO_DRAFT, 0)
                found = sequence.answers.longer(found, drafts.history.ids, most)
            drafts.look(found, most, of_model)
        if self._limits.has_states:
            having = [kind for kind in able if _drafts_of(kind).draft.tokens]
            for kind in having[self._most_with_state :]:
                _drafts_of(kind).draft = NO_DRAFT

    def _may_draft(self, kind: RequestKind) -> bool:
        """Whether a request decodes in its next step, and drafts may follow its last token.

        Beams fork behind each token. A check of an answer beside its grammar goes along no drafts. A mask that was late
        is likely late behind drafts too.
        """
        request, sequence = kind.request.request, kind.sequence
        grammar = request.sampling.grammar
        if request.beam is not None or request.pooling is not None or (grammar is not None and grammar.check):
            return False
        if not sequence.active or sequence.deferred or sequence.in_flight or kind.remaining < 2:
            return False
        # Where a state was taken back, the tokens that were right are computed again.
        return 1 <= len(sequence.tokens) - sequence.computed <= (MOST_FORCED if self._limits.has_states else 1)


def _num_unread(kind: RequestKind) -> int:
    """Tokens of a sequence that a draft model has to read before it drafts."""
    return len(kind.sequence.tokens) - _drafts_of(kind).num_read


def _computes_prompts(running: Collection[RequestKind]) -> bool:
    """Whether a request lacks more than what a grammar has forced, as a rule."""
    return any(lacking(kind) > MOST_FORCED for kind in running)


def _have_room(running: Collection[RequestKind], budget: int, pool: BlockPool) -> bool:
    """Whether all of them can take what they need, each at its data-parallel rank."""
    needs: dict[int, int] = {}
    for kind in running:
        rank = kind.request.data_rank
        needs[rank] = needs.get(rank, 0) + max(0, kind.need(budget) or 0)
    return all(pool.of_rank(rank).can_take(count) for rank, count in needs.items())


def _drafts_of(kind: RequestKind) -> SequenceDrafts:
    """There are some once `_look` has seen the sequence."""
    assert kind.sequence.speculated is not None
    return kind.sequence.speculated
