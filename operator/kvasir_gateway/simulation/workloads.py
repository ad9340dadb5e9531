"""The catalogue of `kvasir gateway simulate`: who sends what when, and to which pods.

Conversations arrive as a Poisson process, or a number of clients begin another one whenever theirs has ended. A turn's
prompt is all that was said before and something new. Shapes are those of published benchmarks and reports: llm-d's
b2b-saas and code generation, one shared prompt (sglang#21199), sequential agents (Infera#103), several samples of one
prompt. Lengths are in tokens and log-normal. The same seed gives the same requests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from math import exp, log
from random import Random
from typing import Final

from kvasir_gateway.simulation.simulated_pod import PIECE_TOKENS, PodSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """tokens: that a client adds to its conversation. output: of the answer. pause_s: before the turn."""

    tokens: int
    output: int
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConversation:
    """prefix: pieces with which it begins and which others may share. samples: copies of each turn sent at once."""

    prefix: tuple[bytes, ...]
    turns: tuple[Turn, ...]
    samples: int = 1


Talk = Callable[[Random, "Pieces"], SimulatedConversation]


class Pieces:
    """Pieces of text, by name or new ones."""

    def __init__(self) -> None:
        self._number = count()
        self._named: dict[tuple[str, int], tuple[bytes, ...]] = {}

    def new(self, tokens: int) -> tuple[bytes, ...]:
        """That no other text has."""
        return tuple(next(self._number).to_bytes(8) for _ in range(max(1, tokens // PIECE_TOKENS)))

    def of(self, kind: str, number: int, tokens: int) -> tuple[bytes, ...]:
        """Always the same for a name."""
        if (kind, number) not in self._named:
            self._named[kind, number] = self.new(tokens)
        return self._named[kind, number]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingWorkload:
    """talk: makes a conversation. per_s: conversations that begin in a second, or 0 where `clients` begin another one
    when theirs has ended. speeds: of the pods. seconds: in which conversations begin; what is under way then ends.
    """

    name: str
    about: str
    talk: Talk
    per_s: float = 0.0
    clients: int = 0
    seconds: float = 120.0
    speeds: tuple[PodSpeed, ...] = (PodSpeed(),) * 8
    seed: int = 1

    def arrivals(self, random: Random) -> Iterator[float]:
        """When conversations begin. Clients begin within two seconds of each other."""
        if self.clients:
            yield from sorted(2.0 * random.random() for _ in range(self.clients))
            return
        at = random.expovariate(self.per_s)
        while at < self.seconds:
            yield at
            at += random.expovariate(self.per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLength:
    """A log-normal length. spread: sigma of its logarithm. least, most: bounds."""

    mean: float
    spread: float = 0.5
    least: int = 1
    most: int = 100_000

    def draw(self, random: Random) -> int:
        """One of them."""
        value = exp(random.gauss(log(self.mean) - self.spread * self.spread / 2, self.spread))
        return min(self.most, max(self.least, round(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Conversations over a number of shared prefixes, of which some are more popular (Zipf's law with that exponent).

    users: of each prefix, each of whom begins with the same own tokens; 0 for none. turns: least and most. pause_s:
    mean, exponential.
    """

    prefixes: int = 1
    shared: int = 0
    exponent: float = 0.0
    users: int = 0
    own: int = 0
    turns: tuple[int, int] = (1, 1)
    tokens: LogNormalLength = field(default_factory=lambda: LogNormalLength(mean=500))
    output: LogNormalLength = field(default_factory=lambda: LogNormalLength(mean=200))
    pause_s: float = 0.0
    samples: int = 1

    def __call__(self, random: Random, pieces: Pieces) -> SimulatedConversation:
        """One conversation."""
        prefix: tuple[bytes, ...] = ()
        if self.shared:
            weights = [1 / (rank + 1) ** self.exponent for rank in range(self.prefixes)]
            number = random.choices(range(self.prefixes), weights)[0]
            prefix = pieces.of("prefix", number, self.shared)
            if self.users:
                prefix += pieces.of("user", number * self.users + random.randrange(self.users), self.own)
        turns = tuple(
            Turn(
                tokens=self.tokens.draw(random),
                output=self.output.draw(random),
                pause_s=random.expovariate(1 / self.pause_s) if self.pause_s and number else 0.0,
            )
            for number in range(random.randint(*self.turns))
        )
        return SimulatedConversation(prefix=prefix, turns=turns, samples=self.samples)


def _mixed(random: Random, _pieces: Pieces) -> SimulatedConversation:
    """One of ten is a long document with a short answer."""
    long = random.random() < 0.1
    tokens = LogNormalLength(mean=24_000 if long else 300).draw(random)
    return SimulatedConversation(prefix=(), turns=(Turn(tokens=tokens, output=LogNormalLength(mean=150).draw(random)),))


SLOW = PodSpeed(prefill_tokens_per_s=5_000.0, step_base_s=0.040, step_slope_s=0.0003, kv_tokens=150_000)


WORKLOADS: Final = (
    RoutingWorkload(
        name="b2b",
        about="150 customers with a system prompt of 6,000 tokens and 5 users each, who ask the same 1,200 tokens "
        "again, answers of 1,000, more than round robin can serve: llm-d's b2b-saas",
        talk=Chat(
            prefixes=150,
            shared=6000,
            users=5,
            own=1200,
            tokens=LogNormalLength(mean=PIECE_TOKENS, spread=0),
            output=LogNormalLength(mean=1000, spread=0),
        ),
        per_s=16.0,
    ),
    RoutingWorkload(
        name="one-prefix",
        about="one system prompt of 4,000 tokens for every client",
        talk=Chat(prefixes=1, shared=4000, tokens=LogNormalLength(mean=400), output=LogNormalLength(mean=200)),
        per_s=40.0,
    ),
    RoutingWorkload(
        name="sequential-agents",
        about="12 agents with the same tools, each waiting for its answer before the next turn",
        talk=Chat(
            prefixes=1,
            shared=4000,
            turns=(10, 20),
            tokens=LogNormalLength(mean=600),
            output=LogNormalLength(mean=80),
            pause_s=0.5,
        ),
        clients=12,
    ),
    RoutingWorkload(
        name="code",
        about="60 programmers: contexts of 3,000 to 100,000 tokens, 2 to 20 turns: llm-d's code generation",
        talk=Chat(
            turns=(2, 20),
            tokens=LogNormalLength(mean=4000, spread=1.0, least=500, most=30_000),
            output=LogNormalLength(mean=300),
            pause_s=4.0,
        ),
        clients=60,
        speeds=(PodSpeed(),) * 10,
    ),
    RoutingWorkload(
        name="reasoning",
        about="questions of 1,000 tokens with answers of 8,000",
        talk=Chat(tokens=LogNormalLength(mean=1000), output=LogNormalLength(mean=8000)),
        per_s=2.0,
    ),
    RoutingWorkload(
        name="long-short", about="one prompt of ten has 24,000 tokens, the others 300", talk=_mixed, per_s=24.0
    ),
    RoutingWorkload(
        name="chat",
        about="conversations of 3 to 8 turns with pauses, over one short system prompt",
        talk=Chat(
            prefixes=1,
            shared=512,
            turns=(3, 8),
            tokens=LogNormalLength(mean=150),
            output=LogNormalLength(mean=250),
            pause_s=8.0,
        ),
        per_s=8.0,
    ),
    RoutingWorkload(
        name="samples",
        about="8 answers to each prompt of 6,000 tokens, requested at once",
        talk=Chat(tokens=LogNormalLength(mean=6000), output=LogNormalLength(mean=300), samples=8),
        per_s=3.0,
    ),
    RoutingWorkload(
        name="documents",
        about="questions about 400 documents of 8,000 tokens, some of them much more popular",
        talk=Chat(
            prefixes=400, shared=8000, exponent=1.0, tokens=LogNormalLength(mean=200), output=LogNormalLength(mean=200)
        ),
        per_s=18.0,
    ),
    RoutingWorkload(
        name="uneven",
        about="conversations where half of the pods are three times slower",
        talk=Chat(
            prefixes=20,
            shared=2000,
            turns=(1, 6),
            tokens=LogNormalLength(mean=400),
            output=LogNormalLength(mean=200),
            pause_s=5.0,
        ),
        per_s=9.0,
        speeds=(PodSpeed(), SLOW) * 4,
    ),
)
