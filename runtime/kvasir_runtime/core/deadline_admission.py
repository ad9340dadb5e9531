"""Whether a request may wait for its first token, by its objective and by how long the queue is in seconds.

Owned by the scheduler. What need not wait is never refused, nor is anything while predictions are inaccurate. A request
with an objective is refused at once where the prediction misses it even by the LEAST quantile of actual to predicted
times; else it waits until the time is too short to compute its prompt by the HIGH quantile. One that was admitted with
others of its HTTP request is never refused. Where the queue is full of tokens, requests of the tenant that has most of
it give way (`queue_drop`). A refusal says by how much it would be late, which is when another try may succeed. Pure:
seconds are given.
"""

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from kvasir_api.openai_errors import OVERLOADED, TTFT_UNREACHABLE
from kvasir_api.state import TtftForecast
from kvasir_runtime.core.admission import LOOKAHEAD
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.core.prompt_order import PromptSizes, TokensUntil, tokens_until
from kvasir_runtime.core.queue_drop import promised_beside, requests_giving_way, tokens_giving_way
from kvasir_runtime.core.refusal_ledger import QueuePlace, RefusalLedger
from kvasir_runtime.core.step_prompts import PromptInStep, lacking
from kvasir_runtime.core.ttft_predictor import HIGH, LOW, QueuedWork, StepLoad, TtftPredictor
from kvasir_runtime.core.waiting_queue import WaitingQueue
from kvasir_runtime.wire import EngineOutput

LEAST: Final = 0.02
"""Quantile of the ratios of actual to predicted times, by which a request is refused at once: nearly every one would
make it late."""

FORGOTTEN: Final = 64
"""Latest starts of requests that wait no more, before they are forgotten."""

FORESEEN: Final = 128
"""Waiting requests before one whose order is followed; those before them are computed in any order."""

JUDGED: Final = 16
"""Waiting requests per plan that pass others and so are not late yet, before later ones are looked at."""

SAMPLED: Final = 16
"""Waiting requests that are predicted again while predictions are not calibrated, so that they soon are."""


class _Start(NamedTuple):
    """When the first chunk of a request has to be next at the latest, for its own prompt alone."""

    latest: float
    number: int
    kind: RequestKind
    place: QueuePlace


class DeadlineAdmission:
    """running, rows: requests with rows, and free rows, as the scheduler changes them."""

    __slots__ = (
        "_expired",
        "_given_way",
        "_is_full",
        "_lacks_rows",
        "_ledger",
        "_left",
        "_left_tokens",
        "_limits",
        "_predictor",
        "_refusals",
        "_rows",
        "_running",
        "_saved_s",
        "_sizes",
        "_starts",
        "_waiting",
    )

    def __init__(self, limits: Limits, waiting: WaitingQueue, running: Collection[str], rows: Collection[int]) -> None:
        self._limits, self._waiting, self._running, self._rows = limits, waiting, running, rows
        self._predictor = TtftPredictor()
        self._sizes = PromptSizes()
        self._ledger = RefusalLedger()
        self._expired = 0
        """Requests that overdue() ended."""
        self._left: list[int] = []
        """Tokens of each running prompt, behind the last plan, the first by order first."""
        self._left_tokens = 0
        self._lacks_rows = self._is_full = False
        self._starts: list[_Start] = []
        """When requests with an objective have to start at the latest, the earliest first."""
        self._refusals: list[EngineOutput] = []
        self._given_way: dict[RequestKind, None] = {}
        """Waiting requests that end with the next plan."""
        self._saved_s = 0.0
        """By which those that wait have become earlier, since overdue ones before them left."""

    def arrived(self, kind: RequestKind, now: float) -> EngineOutput | None:
        """A request comes to wait; an output is its refusal. One that was admitted before is never refused."""
        self._settle()
        request = kind.request
        if request.request.admitted or self._is_idle(kind):
            return None
        given_way: dict[RequestKind, None] = {}
        if full := self._over_bounds(kind, given_way):
            return _refusal(kind, OVERLOADED, full, max(0.0, self.queue_s))
        work = self._work(kind)
        predicted_s = self._note(kind, work, now)
        if predicted_s and self._predictor.calibrated:
            refused = self._over_seconds(kind, predicted_s)
            if refused is not None:
                return refused
        refused = self._over_objective(kind, work, predicted_s, now) if request.request.ttft_s else None
        if refused is None:
            self._given_way |= given_way
        return refused

    def overdue(self, now: float) -> Iterator[RequestKind]:
        """Requests that wait and cannot meet their objectives any more, or gave way; the caller ends each before the
        next. Their refusals are kept until take_refusals().
        """
        given_way, self._given_way = self._given_way, {}
        for kind in given_way:
            if kind.request.phase == "waiting":
                message = "The queue is full, and other tenants have less of it: this request gives way to theirs."
                self._refusals.append(_refusal(kind, OVERLOADED, message, max(0.0, self.queue_s)))
                self._expired += 1
                yield kind
        predictor = self._predictor
        soonest = now + predictor.service_s(self._left_tokens) * predictor.ratio(HIGH)
        passing: list[_Start] = []
        while predictor.calibrated and len(passing) < JUDGED and self._starts and self._starts[0].latest < soonest:
            start = heappop(self._starts)
            kind, place = start.kind, start.place
            request = kind.request
            if request.phase != "waiting" or request.cached_tokens is not None:
                continue
            if now + self._soonest_s(kind) * predictor.ratio(HIGH) <= request.due_at:
                passing.append(start)
                continue
            late_s = self._expected_s(max(0.0, predictor.predict(self._work(kind)))) - (request.due_at - now)
            self._saved_s += predictor.saved_s(request.uncached_estimate, lacks_rows=self._lacks_rows)
            self._refusals.append(self._refused(kind, place, late_s))
            self._expired += 1
            yield kind
        for start in passing:
            heappush(self._starts, start)

    def take_refusals(self) -> tuple[EngineOutput, ...]:
        """The last outputs of overdue requests."""
        refusals, self._refusals = self._refusals, []
        return tuple(refusals)

    def planned(
        self, builder: PlanBuilder, prompts: Sequence[PromptInStep], prompt_tokens: int, now: float
    ) -> StepLoad:
        """What a plan does for those that wait. prompts: with rows; prompt_tokens: of them, that it computes.

        The time of one behind a step with prompts, in which it computes none, counts as that one's.
        """
        if not builder.takes_prompts:
            return StepLoad(0, 0, self._is_full, self._lacks_rows)
        self._left = [left for prompt in prompts if (left := lacking(prompt.kind) - 1) > 0]
        self._left_tokens = sum(self._left)
        for request in [prompt.kind.request for prompt in prompts if lacking(prompt.kind) <= 1]:
            self._sizes.add(request.uncached_estimate)
            self._ledger.computed(request.number, request.uncached_estimate)
        waits = bool(len(self._waiting))
        self._is_full = builder.budget <= 0 and (waits or self._left_tokens > 0)
        self._lacks_rows = waits and (not self._rows or not self._is_full)
        if waits and not self._predictor.calibrated:
            for kind in self._waiting.firsts(SAMPLED):
                if not kind.request.predicted_s and kind.request.cached_tokens is None:
                    self._note(kind, self._work(kind), now)
        return StepLoad(prompt_tokens, len(builder.joins), self._is_full, self._lacks_rows)

    def collected(self, load: StepLoad, elapsed_s: float, now: float) -> None:
        """A step ended now, after so many seconds."""
        self._predictor.observe(load, elapsed_s)
        self._ledger.observe(load, elapsed_s, now, rate=self._predictor.prompt_rate, num_rows=len(self._rows))

    def first_token(self, kind: RequestKind, now: float) -> None:
        """Tokens of a request came; they are its first where it had to wait and its prediction was not compared."""
        request = kind.request
        if not request.predicted_s:
            return
        saved_s = self._saved_s - request.saved_s
        if 2 * saved_s <= request.predicted_s:  # else most of what was predicted has changed
            self._predictor.add(request.predicted_s - saved_s, max(0.0, now - request.predicted_at))
        request.predicted_s = 0.0

    def _over_bounds(self, kind: RequestKind, given_way: dict[RequestKind, None]) -> str:
        """Why the queue is too full for a request, in tokens or in number; empty where it is not.

        given_way: gets those that give way to it. Requests of one tenant are counted before they come here. Those of
        other tenants that never give way do not count, or a tenant could fill the queue with them for all others.
        """
        waiting, limits, tenant = self._waiting, self._limits, kind.request.request.tenant
        tokens, most = self._tokens_with(kind), limits.max_waiting_tokens
        if most and len(waiting) and tokens > most:
            excess = tokens - most - promised_beside(waiting, tenant).tokens
            given_way |= dict.fromkeys(tokens_giving_way(waiting, kind, excess, self._given_way))
            if excess > 0 and not given_way:
                return f"{tokens} prompt tokens would wait to be computed; at most {most} may."
        gone = self._given_way | given_way
        count, most = len(waiting) + 1 - len(gone), limits.max_waiting
        if most and count > most and any(other != tenant for other in waiting.tenants):
            excess = count - most - promised_beside(waiting, tenant).requests
            given_way |= dict.fromkeys(found := requests_giving_way(waiting, kind, excess, gone))
            if excess > 0 and not found:
                return f"{count} requests would wait for a place; at most {most} may."
        return ""

    def _tokens_with(self, kind: RequestKind) -> int:
        """Tokens that wait to be computed with a new request, when those that give way are gone."""
        self._given_way = {other: None for other in self._given_way if other.request.phase == "waiting"}
        gone = sum([other.request.uncached_estimate for other in self._given_way])
        return self._waiting.uncached_tokens - gone + kind.request.uncached_estimate

    @property
    def queue_s(self) -> float:
        """Seconds to the first token of a request that arrives now and has nothing to compute; -1 where not known."""
        self._settle()
        num_waiting = len(self._waiting)
        tokens = self._left_tokens + self._waiting.uncached_tokens
        predicted_s = self._predictor.predict(QueuedWork(tokens, 0, self._places(num_waiting, 1)))
        return predicted_s if predicted_s < 0 else self._expected_s(predicted_s)

    @property
    def forecast(self) -> TtftForecast:
        """What `/state` reports."""
        predictor, ledger, known = self._predictor, self._ledger, bool(self._predictor.ratios)
        return TtftForecast(
            queue_s=self.queue_s,
            ratios=predictor.ratios,
            low_ratio=predictor.ratio(LOW) if known else 0.0,
            high_ratio=predictor.ratio(HIGH) if known else 0.0,
            calibrated=predictor.calibrated,
            refused=ledger.refused,
            expired=self._expired,
            rechecked=ledger.rechecked,
            wrongly_refused=ledger.wrong,
        )

    def _note(self, kind: RequestKind, work: QueuedWork, now: float) -> float:
        """Predict the first token of a request, to be compared with what comes; 0 where that is not possible."""
        predicted_s = max(0.0, self._predictor.predict(work))
        kind.request.predicted_s, kind.request.predicted_at, kind.request.saved_s = predicted_s, now, self._saved_s
        return predicted_s

    def _settle(self) -> None:
        """Forget what the last plan left of requests that have all ended since: no plan follows where none is left."""
        if not self._running:
            self._left, self._left_tokens, self._lacks_rows = [], 0, False

    def _is_idle(self, kind: RequestKind) -> bool:
        """Whether nothing has to be done before a request."""
        return not len(self._waiting) and not self._left_tokens and len(self._rows) >= kind.num_rows

    def _work(self, kind: RequestKind, shared: int = 0) -> QueuedWork:
        """shared: of its tokens, those that others compute."""
        num_before, tokens = self._waiting.before(kind)
        own, places = kind.request.uncached_estimate - shared, self._places(num_before, kind.num_rows)
        if self._lacks_rows:
            return QueuedWork(tokens + self._left_tokens, own, places)
        near = self._waiting.just_before(kind, FORESEEN)
        until = self._until(near, own)
        return QueuedWork(tokens - sum(near) + until.tokens - own, own, places, until.later)

    def _soonest_s(self, kind: RequestKind) -> float:
        """To the first token of a waiting request that passes all that wait."""
        return self._predictor.service_s(self._until((), kind.request.uncached_estimate).tokens)

    def _until(self, waiting: Sequence[int], own: int) -> TokensUntil:
        """What steps compute until a prompt is computed, behind running ones and those that wait."""
        share = self._sizes.shorter_share
        return tokens_until(self._left, waiting, own, lookahead=LOOKAHEAD, shorter_share=share)

    def _places(self, num_before: int, num_rows: int) -> int:
        """Requests that have to leave before one behind so many others gets its rows."""
        return max(0, num_before + num_rows - (0 if self._lacks_rows else len(self._rows)))

    def _expected_s(self, predicted_s: float) -> float:
        return predicted_s * self._predictor.ratio(0.5)

    def _over_seconds(self, kind: RequestKind, predicted_s: float) -> EngineOutput | None:
        """The refusal of a request that would wait too long. What several have in common is computed once, which the
        ratios to actual times know of others too: they make what is left no shorter.
        """
        limit_s, expected_s = self._limits.max_waiting_s, self._expected_s(predicted_s)
        if not limit_s or expected_s <= limit_s:
            return None
        own, before = kind.request.shared_tokens, self._waiting.shared_before(kind)
        if own or before:
            work = self._work(kind, own)
            alone = work._replace(tokens=max(0, work.tokens - before))
            expected_s = min(expected_s, self._predictor.predict(alone) * max(1.0, self._predictor.ratio(0.5)))
        if expected_s <= limit_s:
            return None
        message = f"The first token would come in about {expected_s:.0f} s; requests wait for {limit_s:g} s at most."
        return _refusal(kind, OVERLOADED, message, expected_s)

    def _over_objective(
        self, kind: RequestKind, work: QueuedWork, predicted_s: float, now: float
    ) -> EngineOutput | None:
        request, predictor = kind.request, self._predictor
        objective_s = request.request.ttft_s
        place = self._ledger.place(request.number, work, now, predictor.service_s(work.own))
        if predictor.calibrated and predicted_s * predictor.ratio(LEAST) > objective_s:
            return self._refused(kind, place, self._expected_s(predicted_s) - objective_s)
        if len(self._starts) > 2 * len(self._waiting) + FORGOTTEN:
            self._starts = [start for start in self._starts if start.kind.request.phase == "waiting"]
            heapify(self._starts)
        needs_s = work.own / predictor.prompt_rate * predictor.ratio(HIGH) if predictor.prompt_rate else 0.0
        heappush(self._starts, _Start(request.due_at - needs_s, request.number, kind, place))
        return None

    def _refused(self, kind: RequestKind, place: QueuePlace, late_s: float) -> EngineOutput:
        request = kind.request
        self._ledger.refuse(place, request.due_at)
        message = (
            f"The first token would come about {max(0.0, late_s):.1f} s later than the objective of"
            f" {request.request.ttft_s:g} s."
        )
        return _refusal(kind, TTFT_UNREACHABLE, message, late_s)


def _refusal(kind: RequestKind, code: str, message: str, retry_after_s: float) -> EngineOutput:
    return EngineOutput(
        request_id=kind.request.request_id,
        finish_reason="error",
        message=message,
        code=code,
        retry_after_s=retry_after_s,
    )
