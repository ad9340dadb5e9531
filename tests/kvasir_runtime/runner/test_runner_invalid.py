"""A model whose numbers are not finite fails the requests that they belong to, and no other.

The embeddings of a few tokens are broken, so whatever reads one is; a request without them must not notice.
"""

from pathlib import Path

import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.mixtures import Story, mixed, request, served, told
from fakes.overlapping import Overlapping
from fakes.recording import OPS, Recordings
from fakes.soak import BLOCK_SIZE, SoakEngine
from kvasir_api.openai_errors import MODEL_OUTPUT_INVALID
from kvasir_api.state import RuntimeState
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineRequest, PoolingConfig

BROKEN = (77, 150, 220, 290)
NAN, INF = float("nan"), float("inf")
BF16 = {"ops": cpu_ops(), "dtype": torch.bfloat16}
WAYS = {
    "torch": {},
    "cpp": BF16,
    "device": {"ops": OPS, "device_stream": Overlapping},
    "graphs": {"ops": OPS, "device_stream": Overlapping, "new_capturer": Recordings},
}


def written(folder: Path, **rows: float) -> Path:
    """A model of which some rows are broken: those of the embeddings or the head. rows: what they are instead."""
    shape = Shape(num_layers=2, max_position_embeddings=256)
    checkpoints.write(folder, shape)
    weights = checkpoints.random_weights(shape)
    for name, value in rows.items():
        tensor = weights["lm_head.weight" if name == "lm_head" else "model.embed_tokens.weight"]
        tensor[list(BROKEN)] = value
    checkpoints.write_weights(folder, weights)
    return folder


def made(folder: Path, way: str) -> ModelRunner:
    options = {"num_blocks": 64, "max_sequences": 9, **WAYS[way]}
    if "device_stream" in options:
        options["device_stream"] = options["device_stream"]()
    runner = runner_of(folder, **options)
    runner.capture_graphs()
    return runner


def failed(story: Story) -> set[str]:
    """Requests that ended because the model's output was not finite; no other error is expected."""
    last = {name: events[-1] for name, events in story.items()}
    errors = {name: event for name, event in last.items() if event.finish_reason == "error"}
    assert {event.code for event in errors.values()} <= {MODEL_OUTPUT_INVALID}
    assert all("not finite" in event.message for event in errors.values())
    return set(errors)


def reads(one: EngineRequest, events: list) -> bool:
    """Whether a broken token is read by a request that got these events of a whole model."""
    answer = [token for event in events for token in event.token_ids]
    return not set(BROKEN).isdisjoint((*one.prompt, *answer[:-1]))


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_reads_a_broken_token_fails_and_no_other(tmp_path: Path, way: str, value: float) -> None:
    depth = 2 if "device_stream" in WAYS[way] else 1
    whole = served(made(written(tmp_path / "whole"), way), mixed(), depth=depth)
    story = served(made(written(tmp_path / "broken", embedding=value), way), mixed(), depth=depth)
    lost = {one.request_id for one in mixed() if one.beam is None and reads(one, whole[one.request_id])}
    assert len(lost) > 3
    beams = {name for name in story if name.startswith("60")}
    assert failed(story) - beams == lost
    assert failed(story) >= {one.request_id for one in mixed() if reads(one, [])}
    for name in set(story) - failed(story) - beams:
        assert told(story[name]) == told(whole[name])


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("way", WAYS)
def test_a_head_that_is_broken_for_one_token_fails_everyone_and_the_engine_goes_on(
    tmp_path: Path, way: str, value: float
) -> None:
    """A row of infinities gives NaN or infinity, by the signs of what it is multiplied with."""
    runner = made(written(tmp_path / "head", lm_head=value), way)
    story = served(runner, mixed(), depth=1)
    assert failed(story) == {name for name in story if name not in ("50", "51")}  # vectors do not pass the head


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["mean", "last"])
def test_a_vector_that_is_not_finite_is_an_error(tmp_path: Path, way: str, kind: str) -> None:
    runner = made(written(tmp_path / "m", embedding=NAN), way)
    requests = [request(number, pooling=PoolingConfig(kind=kind)) for number in (1, 2)]
    requests.append(EngineRequest(request_id="x", prompt=(5, BROKEN[0], 6), sampling=requests[0].sampling,
                                  pooling=requests[0].pooling))  # fmt: skip
    story = served(runner, requests, depth=1)
    assert failed(story) == {one.request_id for one in requests if reads(one, [])}
    assert not any(event.pooled for event in story["x"])


def test_a_prefix_that_was_computed_with_broken_numbers_is_not_used_again(tmp_path: Path) -> None:
    runner = made(written(tmp_path / "m", embedding=NAN), "torch")
    scheduler, prefix = scheduler_of(runner, budget=64), tuple(range(3, 43))
    sampling = request(0).sampling
    cached = []
    for number, last in enumerate((200, BROKEN[1], 201, 202)):
        one = EngineRequest(request_id=str(number), prompt=(*prefix, last), sampling=sampling)
        assert scheduler.submit(one, 0.0) is None
        events = []
        while (plan := scheduler.plan(0.0)) is not None:
            events += scheduler.commit(runner.collect(runner.launch(plan)), 0.0)
        cached.append(events[-1].cached_tokens)
        assert (events[-1].code == MODEL_OUTPUT_INVALID) == (last == BROKEN[1])
    assert cached == [0, 40, 0, 40]
    assert scheduler.report(RuntimeState()).totals.invalid_outputs == 1
    assert scheduler.pool.num_pinned == 0


def test_what_was_computed_with_broken_numbers_is_dropped_from_the_host(tmp_path: Path) -> None:
    def engine() -> SoakEngine:
        model, folder = written(tmp_path / "m", embedding=NAN), tmp_path / "kv"
        return SoakEngine(model, folder, num_blocks=64, max_sequences=4, host_bytes=1 << 20)

    first, prefix, on_host = engine(), tuple(range(3, 43)), []
    for number, last in enumerate((200, BROKEN[1])):
        first.submit(EngineRequest(request_id=str(number), prompt=(*prefix, last), sampling=request(0).sampling))
        while first.scheduler.has_work:
            first.step()
        on_host.append(engine().runner.host_changes())
    assert first.ended["1"] == "error"
    before, after = (set(changes.added) for changes in on_host)
    assert after < before
    assert len(before - after) == len(prefix) // BLOCK_SIZE, "what the first answer alone holds stays"
