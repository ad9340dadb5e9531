"""How near answers that copy come to what arithmetic allows, in virtual time: steps cost what they cost without matrix
units, where a token beyond the few that memory hides is as dear as any."""

from types import SimpleNamespace

import pytest

from bench import copying_model
from fakes.serving import request
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.counters import Counters
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import SampledTokens, StepResults
from kvasir_runtime.core.plan_builder import LaunchedChunk
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.speculation.speculation import Speculation

LIMITS = Limits(num_blocks=4096, block_size=16, max_batch_tokens=512, max_sequences=256, max_model_len=1 << 20)
IDS, TOKENS = copying_model.chain(8192), 384
WORK = {"edit": copying_model.edit, "extract": copying_model.extract}


def step_s(num_tokens: int) -> float:
    """10 ms for the weights, or 1.45 for each token, and 0.1 for each besides."""
    return (max(10.0, 1.45 * num_tokens) + 0.1 * num_tokens + 0.3) / 1000


class Copying:
    """A request whose answer is known. full: prompt and answer."""

    def __init__(self, work: str, start: int) -> None:
        prompt = WORK[work](IDS, start, TOKENS, start)
        self.full = [*prompt, *(IDS[(start + place) % len(IDS)] for place in range(TOKENS))]
        self.request = RequestState(request(str(start), prompt, max_tokens=TOKENS), 0.0)
        tokens = self.full[: len(prompt) + 1]
        self.sequence = SequenceState(self.request, b"", tokens, active=True, computed=len(prompt))
        self.sequence.blocks.covered = 1 << 20
        self.num_rows = 1

    @property
    def remaining(self) -> int:
        return len(self.full) - len(self.sequence.tokens)

    def need(self, _: int) -> int:
        return 0

    def step(self) -> tuple[LaunchedChunk, SampledTokens]:
        sequence = self.sequence
        at, accepted, drafts = len(sequence.tokens), 0, sequence.drafts
        while accepted < len(drafts) and drafts[accepted] == self.full[at + accepted]:
            accepted += 1
        chunk = LaunchedChunk(sequence, sequence.computed, sequence.computed + 1, True, False, False, drafts)
        given = tuple(self.full[at : at + accepted + 1])
        sequence.tokens.extend(given)
        sequence.computed += len(given)
        return chunk, SampledTokens(0, given, accepted=accepted)


def copied(speculation: Speculation, pool: BlockPool, work: str, streams: int, number: int) -> float:
    """Tokens a second of one round."""
    first, elapsed_s, num_tokens = 1 + 1000 * number, 0.0, 0
    running = [Copying(work, first + 400 * place) for place in range(streams)]
    while running:
        speculation.draft(running, 512, pool)
        chunks, sampled = zip(*[one.step() for one in running], strict=True)
        taken = step_s(len(chunks) + sum(len(chunk.drafts) for chunk in chunks))
        speculation.collected(chunks, StepResults(step=1, sampled=sampled), taken)
        elapsed_s, num_tokens = elapsed_s + taken, num_tokens + sum(len(one.tokens) for one in sampled)
        running = [one for one in running if one.remaining]
    return num_tokens / elapsed_s


@pytest.mark.parametrize(("streams", "least"), [(1, 0.72), (4, 0.85)])
@pytest.mark.parametrize("work", WORK)
def test_copies_come_near_to_what_arithmetic_allows(work: str, streams: int, least: float) -> None:
    limits = SimpleNamespace(
        speculation="auto",
        has_states=False,
        attentions=(),
        block_bytes=0,
        num_rows=LIMITS.num_rows,
        max_batch_tokens=512,
        max_cached_answers=0,
    )
    speculation, pool = Speculation(limits, Counters()), BlockPool(4096, LIMITS.attentions, 16)
    rates = [copied(speculation, pool, work, streams, number) for number in range(4)]
    assert min(rates[1:]) > least * 1000 / 1.55
    assert min(rates[1:]) > (4.5 if streams == 1 else 1.4) * streams / step_s(streams)
