"""The measurement of the gateway, for a moment: a scenario has its figures, and nothing breaks."""

from functools import partial

import pytest

from bench import gateway as bench
from bench import gateway_costs as costs
from bench import gateway_rig, roles, shapes
from bench import gateway_scenarios as scenarios
from bench.gateway_changes import changes
from bench.gateway_replacements import replacements
from fakes import checkpoints

pytestmark = pytest.mark.xdist_group("gateway-bench")


async def test_streams_are_measured_and_none_breaks():
    run = partial(scenarios.many_streams, streams=20, seconds=0.5, events=2)
    figures = {figure.name: figure.value for figure in await bench.measured(bench.Scenario(run=run, replicas=1))}
    assert figures["streams that ended"] >= 20
    assert figures["broken"] == 0
    assert figures["Envoy, memory"] > 1


async def test_memory_is_measured_under_all_kinds_of_requests():
    run = partial(scenarios.memory, seconds=3.0, change_s=0.5)
    strange, *memory = await bench.measured(bench.Scenario(run=run, replicas=2))
    assert strange.is_met, strange
    assert [figure.name.split(",")[0] for figure in memory[::4]] == ["Envoy", "picker", "relay"]
    for least, middle, most, _taken in zip(*([iter(memory)] * 4), strict=True):
        assert 1 < least.value <= middle.value <= most.value


async def test_the_hashes_of_a_prompt_have_their_cost():
    least, middle, most = await bench.measured(bench.Scenario(run=partial(costs.hashing, tokens=1000, count=3)))
    assert 0 < least.value <= middle.value <= most.value
    assert middle.goal == "<= 10 ms"


async def test_the_relay_has_its_own_cost():
    run = partial(costs.relayed, rounds=1, at_once=10, pairs=2)
    figures = await bench.measured(bench.Scenario(run=run, replicas=1))
    cost = {figure.name: figure.value for figure in figures}
    assert cost["relay, processor time of a stream that may be resumed, most"] > 0
    assert "relay, processor time of a stream as it is, most" not in cost, "it has none of those"
    least, middle, most = (cost[f"added to the first event, {which}"] for which in ("least", "median", "most"))
    assert least <= middle <= most


async def test_a_picker_that_is_killed_is_followed_by_one_that_serves():
    with gateway_rig.replicas(1) as pods:
        async with gateway_rig.gateway() as front:
            await front.serve(pods)
            before = front.pids
            assert await front.replace_picker(pods) >= 0
            assert {name for name, pid in front.pids.items() if pid != before[name]} == {"picker"}


async def test_the_sessions_of_a_replica_that_leaves_move_and_no_others():
    run = partial(scenarios.moved, keys=40)
    left, moved = await bench.measured(bench.Scenario(run=run, replicas=3))
    assert 0 < left.value < 40, left
    assert moved.is_met, moved


@pytest.mark.parametrize("resumes", [False, True])
async def test_replicas_are_replaced_and_leave_under_streams_and_no_client_notices(resumes):
    run = partial(replacements, rollouts=1, scale_downs=2, per_s=10.0, resumes=resumes)
    streams, handed_over, *failed = await bench.measured(bench.Scenario(run=run, replicas=3))
    assert streams.value > 10
    assert (handed_over.value > 0) == resumes
    assert [figure.value for figure in failed] == [0, 0], failed


async def test_a_change_has_its_cost_for_both():
    found = await bench.measured(bench.Scenario(run=partial(changes, services=5, pods=2, count=2)))
    assert [figure.name for figure in found if figure.goal] == ["Envoy, median", "the picker, median"]
    assert len(found) == 6


async def test_a_service_with_a_replica_for_prompts_is_measured_beside_one_without(tmp_path):
    load = roles.MixedLoad(document_fraction=0.5, load_fraction=0.5)
    model = shapes.written(tmp_path / gateway_rig.MODEL, checkpoints.Shape(vocab_size=2048))
    found = await roles.measured(model, [load], seconds=0.5, rounds=1)
    assert list(found[load]) == list(roles.SERVICES)
    alone, _ = (runs for (runs,) in found[load].values())
    assert alone["prompts handed over [%]"] == 0
    assert alone["TTFT of documents, median [ms]"] > 0
