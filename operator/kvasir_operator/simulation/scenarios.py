"""The catalogue of `kvasir simulate`: traffic, pods, bounds, and what is expected of an autoscaler there.

Loads are in replicas: 2.5 is what occupies two and a half pods entirely, by whatever is scarce there. The shapes of
published traces are those of their papers: lengths and burstiness of Azure's code and conversation traces (Patel et al.
2024), lengths and reuse of Mooncake's tool-agent trace (Qin et al. 2025), the ten-minute ramp of llm-d's benchmark.
"""

from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from kvasir_api.autoscaling import Autoscaling
from kvasir_operator.simulation import traffic
from kvasir_operator.simulation.hold_model import HoldProfile
from kvasir_operator.simulation.pod_capacity import PodCapacity, pod_capacity
from kvasir_operator.simulation.pod_model import PodProfile
from kvasir_operator.simulation.traffic import LengthMix, RateCurve

TARGET_FRACTION: Final = 0.85
"""Share of a replica that a steady load may occupy; what a person plans with, and the default of kvTargetPercent."""
FIGURES: Final = (
    "signal_to_pod_p95_s",
    "overshoot",
    "reversals_per_window",
    "objective_met_fraction",
    "p99_ttft_s",
    "replica_hours_of_static",
    "replica_hours_of_oracle",
)
"""What a run is judged by; `figures.py` computes them."""
REACTION, STEADINESS, SERVED, COST = FIGURES[:2], FIGURES[2:3], FIGURES[3:5], FIGURES[5:]
WITHOUT_STATIC: Final = (*FIGURES[:5], *FIGURES[6:])

LARGE: Final = PodProfile()
"""Qwen3-32B on two H100 with the prefill rate that llm-d measured, two minutes until ready."""
SMALL: Final = PodProfile(
    kv_tokens=60_000, slots=64, prefill_tokens_per_s=6_000, step_base_s=0.025, step_slope_s=0.0008, cold_start_s=40.0
)
"""An 8B model on a small card, from a warm node."""
CHAT: Final = LengthMix(prompt=600, output=300)
_CHAT_PER_S: Final = pod_capacity(SMALL, CHAT).requests_per_s
TO_ZERO: Final[dict[str, object]] = {"min_replicas": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One stretch of traffic. load: replicas occupied at a time; most_load: its bound. goals: figures that mean
    something there: a share of static hours where an oracle needs 60 % of them at most, or little more; an objective
    that is met where a rule could meet it without seeing the future; a bound of reversals where the load does not turn
    by itself within a window. start: replicas at the beginning; most: maxReplicas. steady: replicas that are enough; 0
    for the most that the load needs at any time.

    ttft_s, itl_s: the objective of a request, itl_s 0 for none; the autoscaler knows it. hold: what the gateway
    holds while pods are busy, None for nothing. seed: of arrivals and lengths.
    """

    name: str
    about: str
    load: RateCurve
    most_load: float
    seconds: float
    mix: LengthMix = CHAT
    profile: PodProfile = SMALL
    start: int = 1
    most: int = 16
    steady: int = 0
    ttft_s: float = 5.0
    itl_s: float = 0.0
    hold: HoldProfile | None = None
    seed: int = 1
    goals: tuple[str, ...] = FIGURES
    spec: dict[str, object] = field(default_factory=dict)

    @property
    def autoscaling(self) -> Autoscaling:
        """The spec with which Kvasir's rule runs."""
        objective = {"ttft_milliseconds": round(1000 * self.ttft_s), "itl_milliseconds": round(1000 * self.itl_s)}
        return Autoscaling.model_validate({"min_replicas": 1, "max_replicas": self.most, **objective, **self.spec})

    @property
    def capacity(self) -> PodCapacity:
        """What one pod serves of these requests."""
        return pod_capacity(self.profile, self.mix, itl_s=self.itl_s)

    def need(self, at: float) -> int:
        """Replicas for the load at a time, if it were steady."""
        return max(1, ceil(self.load(at) / TARGET_FRACTION - 1e-9))


def scenarios() -> list[Scenario]:
    """Those that run together, in the order in which they are told."""
    return [*_shapes(), *_mixes(), *_limits(), *_zero(), *_waves(), *_llm_d(), *_traces()]


def named() -> dict[str, Scenario]:
    """All, with those that take minutes and run by name alone."""
    return {scenario.name: scenario for scenario in [*scenarios(), *_large()]}


def _large() -> list[Scenario]:
    return [
        Scenario(
            name="thousand",
            about="from 80 replicas to 800 within eight minutes, of at most 1,000 (takes minutes)",
            load=traffic.ramp(80, 800, start=240, end=720),
            most_load=800,
            seconds=1200,
            start=95,
            most=1000,
            goals=("overshoot", *STEADINESS, *SERVED, "replica_hours_of_oracle"),
        )
    ]


def _shapes() -> list[Scenario]:
    return [
        Scenario(
            name="step",
            about="half a replica, then two and a half for 25 minutes, then half a one again",
            load=traffic.step(0.5, 2.4, at=600, back=2100),
            most_load=2.4,
            seconds=3000,
            goals=WITHOUT_STATIC,
        ),
        Scenario(
            name="ramp",
            about="from one replica to five within ten minutes",
            load=traffic.ramp(0.7, 4.5, start=300, end=900),
            most_load=4.5,
            seconds=1800,
        ),
        Scenario(
            name="spike",
            about="three times the load for two minutes",
            load=traffic.step(0.8, 2.5, at=600, back=720),
            most_load=2.5,
            seconds=1800,
            goals=("signal_to_pod_p95_s", *STEADINESS, "p99_ttft_s"),
        ),
        Scenario(
            name="diurnal",
            about="a day in two hours, from half a replica to five",
            load=traffic.diurnal(0.4, 4.6, period=7200),
            most_load=4.6,
            seconds=7200,
        ),
    ]


def _mixes() -> list[Scenario]:
    """Requests that are unlike a chat's."""
    return [
        Scenario(
            name="prefill-heavy",
            about="prompts of 4,000 tokens with answers of 20, half a replica to three",
            load=traffic.step(0.5, 2.4, at=600, back=2100),
            most_load=2.4,
            seconds=3000,
            mix=LengthMix(prompt=4000, output=20),
            profile=LARGE,
            start=1,
            ttft_s=10.0,
            goals=(*REACTION, *STEADINESS, "p99_ttft_s", "replica_hours_of_oracle"),
        ),
        Scenario(
            name="long-streams",
            about="answers of 3,000 tokens, half a replica to three",
            load=traffic.ramp(0.5, 2.4, start=600, end=1200),
            most_load=2.4,
            seconds=3600,
            mix=LengthMix(prompt=300, output=1200, spread=0.3),
            goals=WITHOUT_STATIC,
        ),
        Scenario(
            name="shared-prefixes",
            about="eight system prompts of 1,500 tokens before questions of 100, half a day",
            load=traffic.diurnal(0.4, 3.2, period=3600),
            most_load=3.2,
            seconds=3600,
            mix=LengthMix(prompt=1600, output=150, groups=8, shared=1500),
        ),
    ]


def _limits() -> list[Scenario]:
    return [
        Scenario(
            name="slots",
            about="a steady load that fills the sequence slots of one replica and needs two, with ample KV cache",
            load=traffic.step(1.1, 1.1, at=0),
            most_load=1.1,
            seconds=3600,
            profile=PodProfile(kv_tokens=2_000_000, slots=256, prefill_tokens_per_s=40_000, cold_start_s=40.0),
            mix=LengthMix(prompt=300, output=1500, spread=0.3),
            goals=(*STEADINESS, *SERVED),
        ),
        Scenario(
            name="decode-bound",
            about="KV cache and slots free, while steps are longer than the objective of 40 ms between tokens",
            load=traffic.ramp(0.6, 2.4, start=300, end=900),
            most_load=2.4,
            seconds=2400,
            profile=PodProfile(
                kv_tokens=2_000_000, slots=512, prefill_tokens_per_s=40_000, step_slope_s=0.0005, cold_start_s=40.0
            ),
            itl_s=0.040,
            goals=WITHOUT_STATIC,
        ),
        Scenario(
            name="refusals",
            about="a third of a replica, then eight, of which replicas with short queues and slow starts refuse most",
            load=traffic.step(0.3, 8.0, at=600, back=2400),
            most_load=8.0,
            seconds=3000,
            profile=replace(SMALL, max_waiting=4, cold_start_s=120.0),
            goals=("overshoot", *STEADINESS, "replica_hours_of_oracle"),
        ),
        Scenario(
            name="full-gateway",
            about="the same behind a gateway that holds 64 requests for them and refuses what comes beyond",
            load=traffic.step(0.3, 8.0, at=600, back=2400),
            most_load=8.0,
            seconds=3000,
            profile=replace(SMALL, max_waiting=4, cold_start_s=120.0),
            hold=HoldProfile(max_requests=64),
            goals=("overshoot", *STEADINESS, "replica_hours_of_oracle"),
        ),
        Scenario(
            name="burst",
            about="twenty long requests within two seconds, which half a replica serves",
            load=traffic.step(0.02, 24.0, at=600, back=602),
            most_load=24.0,
            seconds=1500,
            profile=LARGE,
            mix=LengthMix(prompt=500, output=2000, spread=0.2),
            goals=("overshoot", *STEADINESS, *SERVED),
            steady=1,
            ttft_s=10.0,
        ),
    ]


def _zero() -> list[Scenario]:
    """minReplicas is 0; a start leaves time of the objective, so that no replica stays for it."""
    return [
        Scenario(
            name="herd",
            about="half a replica, an hour of nothing, then 200 requests within two seconds",
            load=lambda t: 0.5 if t < 600 else 200 / 2 / _CHAT_PER_S if 4200 <= t < 4202 else 0.0,
            most_load=100 / _CHAT_PER_S,
            seconds=5400,
            spec=TO_ZERO,
            steady=4,
            goals=("overshoot", *STEADINESS, "p99_ttft_s", "replica_hours_of_static"),
            ttft_s=60.0,
        ),
        Scenario(
            name="lulls",
            about="half a replica for ten minutes of every hour",
            load=lambda t: 0.5 if t % 3600 < 600 else 0.0,
            most_load=0.5,
            seconds=4 * 3600,
            spec=TO_ZERO,
            goals=("overshoot", *STEADINESS, *SERVED, "replica_hours_of_static"),
            ttft_s=60.0,
        ),
    ]


def _waves() -> list[Scenario]:
    return [
        Scenario(
            name="noise",
            about="three replicas, ±20 % every half minute",
            load=traffic.noisy(2.0, fraction=0.2, every=30, seed=7),
            most_load=2.4,
            seconds=3600,
            start=3,
            goals=(*STEADINESS, *SERVED, "replica_hours_of_oracle"),
        ),
        Scenario(
            name="square-wave",
            about="one replica and three, each for half a cool-down period",
            load=traffic.square(0.7, 2.2, period=300),
            most_load=2.2,
            seconds=3600,
            start=3,
            goals=(*STEADINESS, *SERVED),
        ),
        Scenario(
            name="slow-square-wave",
            about="one replica and three, each for a cool-down period",
            load=traffic.square(0.7, 2.2, period=600),
            most_load=2.2,
            seconds=3600,
            start=3,
            goals=(*STEADINESS, *SERVED),
        ),
    ]


def _llm_d() -> list[Scenario]:
    """Its published runs: at most ten replicas; prompts and answers long, or alike."""
    mixes = {
        "prefill-heavy": LengthMix(prompt=4000, output=250),
        "decode-heavy": LengthMix(prompt=1000, output=2000),
        "symmetric": LengthMix(prompt=1000, output=1000),
    }
    return [
        Scenario(
            name=f"llm-d-{name}",
            about=f"llm-d's ten-minute ramp, {mix.prompt:.0f} tokens in and {mix.output:.0f} out, starts of 120 s",
            load=traffic.ramp(0.7, 5.4, start=60, end=660),
            most_load=5.4,
            seconds=1260,
            profile=LARGE,
            mix=mix,
            most=10,
            goals=(*REACTION, "p99_ttft_s"),
        )
        for name, mix in mixes.items()
    ]


def _traces() -> list[Scenario]:
    return [
        Scenario(
            name="azure-code",
            about="lengths and bursts of Azure's code trace on a slow day",
            load=traffic.bursty(traffic.diurnal(0.5, 2.0, period=3600), cv=0.3, every=20, seed=3),
            most_load=6.0,
            seconds=3600,
            mix=LengthMix(prompt=2050, output=28, spread=0.9),
            goals=(*SERVED, *COST),
        ),
        Scenario(
            name="azure-conversation",
            about="lengths and bursts of Azure's conversation trace on a slow day",
            load=traffic.bursty(traffic.diurnal(0.5, 3.0, period=3600), cv=0.15, every=20, seed=4),
            most_load=6.0,
            seconds=3600,
            mix=LengthMix(prompt=1155, output=211, spread=0.8),
            goals=(*SERVED, *COST),
        ),
        Scenario(
            name="tool-agent",
            about="lengths and reuse of Mooncake's tool-agent trace: 8,600 tokens, of which 5,000 are shared",
            load=traffic.bursty(traffic.diurnal(0.6, 3.0, period=3540), cv=0.15, every=30, seed=5),
            most_load=6.0,
            seconds=3540,
            profile=LARGE,
            mix=LengthMix(prompt=8600, output=182, spread=0.7, groups=32, shared=5000),
            ttft_s=10.0,
            goals=(*SERVED, *COST),
        ),
    ]
