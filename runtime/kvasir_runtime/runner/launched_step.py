"""A launched step and its states: queued, forward running, waiting for a grammar, sampled, collected.

`runner.ModelRunner.launch` creates a step and the engine gives it back to `collect`. Only the runner moves a step from
one state to the next, in this order; a step skips the states that it does not need. States are not frozen, since a
frozen instance takes twice as long to create.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvasir_runtime.core.plan import StepPlan, StepResults
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.runner.drafts import sampled_positions
from kvasir_runtime.runner.sampling.sampler import SamplingBatch
from kvasir_runtime.runner.state.device_stream import StreamEvent
from kvasir_runtime.runner.state.row_state import AppendPositions
from kvasir_runtime.runner.step_output import StepOutput

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import GrammarMatcher


@dataclass(slots=True)
class Queued:
    """The plan is not applied yet: a host computes one step at a time, in the order of the launches."""


@dataclass(slots=True)
class ForwardRunning:
    """Other threads of the host compute the forward pass; `collect` joins them.

    fast_path: they sample as well, and append the ids to their rows.
    """

    fast_path: bool


@dataclass(slots=True)
class WaitingForGrammar:
    """The forward pass is computed or enqueued. Its masks may depend on a token of the step before.

    forward: rows of the chunks that sample, then of those that are scored, then of those that are pooled.
    """

    forward: ForwardOutput
    positions: AppendPositions | None


@dataclass(slots=True)
class Sampled:
    """All work is enqueued. output is complete in host memory once the event has passed."""

    output: StepOutput
    event: StreamEvent


@dataclass(slots=True)
class Collected:
    """The tokens are in host memory and the grammars have accepted them.

    ended: matchers after which later samples are dropped: their grammar forced more tokens, ended or failed.
    """

    results: StepResults
    ended: tuple["GrammarMatcher", ...] = ()


StepState = Queued | ForwardRunning | WaitingForGrammar | Sampled | Collected


@dataclass(slots=True)
class LaunchedStep:
    """A plan on its way through the runner.

    dropped: matchers that ended after this step was planned; what is sampled for them is dropped. undrafted: by row,
    how many drafts of the scheduler's plan the draft model did not make.
    """

    plan: StepPlan
    sampling: SamplingBatch = field(init=False)
    state: StepState = field(default_factory=Queued)
    dropped: list["GrammarMatcher"] = field(default_factory=list)
    undrafted: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.use(self.plan, {})

    def use(self, plan: StepPlan, undrafted: dict[int, int]) -> None:
        """Compute this plan: the same but for its drafts."""
        self.plan, self.undrafted, self.sampling = plan, undrafted, SamplingBatch(sampled_positions(plan.chunks))

    def drop(self, matchers: Iterable["GrammarMatcher"]) -> None:
        """Drop what is, or will be, sampled for these matchers."""
        self.dropped += matchers
        if self.sampling.masks is not None:
            self.sampling.masks.drop(matchers)
