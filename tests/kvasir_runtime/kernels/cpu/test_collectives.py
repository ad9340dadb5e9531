"""Sums, gathers and broadcasts of several ranks: exact, alike on all of them, and at an end when one is lost."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fakes.ranks import group_of, links_of
from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels.collectives import Collectives, StageCollectives
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.node_collectives import NodeCollectives

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
SLOT_BYTES = 256 << 10
T = TypeVar("T")


def on_all(group: tuple[Collectives, ...], call: Callable[[Collectives], T]) -> list[T]:
    """What each rank gets, all at once."""
    with ThreadPoolExecutor(len(group)) as pool:
        return [future.result(60) for future in [pool.submit(call, member) for member in group]]


@given(
    shape=st.sampled_from([(2, 1), (3, 1), (5, 1), (2, 2), (3, 3), (4, 2), (6, 3)]),
    sizes=st.lists(st.sampled_from([1, 7, 256, 1000, SLOT_BYTES // 4, SLOT_BYTES // 4 + 1, 150_000]), max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_every_rank_has_the_sum_in_the_order_of_the_ranks(
    shape: tuple[int, int], sizes: list[int], dtype: torch.dtype, seed: int
) -> None:
    """shape: ranks, and the nodes on which they are."""
    ranks, _ = shape
    generator = torch.Generator().manual_seed(seed)
    given_ = [[torch.randn(size, generator=generator).to(dtype) for _ in range(ranks)] for size in sizes]

    def call(member: Collectives) -> list[torch.Tensor]:
        return [member.all_reduce(of_rank[member.rank].clone()) for of_rank in given_]

    with group_of(*shape) as group:
        found = on_all(group, call)
    for index, of_rank in enumerate(given_):
        total = of_rank[0].float()
        for part in of_rank[1:]:
            total = total + part.float()
        for member in found:
            assert torch.equal(member[index], total.to(dtype))


@pytest.mark.parametrize("shape", [(2, 1), (2, 2)])
def test_a_sum_that_is_not_finite_stays_so(shape: tuple[int, int]) -> None:
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 3.0e38])

    def call(member: Collectives) -> list[torch.Tensor]:
        return [member.all_reduce(values.to(dtype)) for dtype in (torch.float32, torch.bfloat16)]

    with group_of(*shape) as group:
        for found in on_all(group, call):
            for sums in found:
                assert sums[0].isnan()
                assert sums[1:].tolist() == [float("inf"), -float("inf"), float("inf")]


@pytest.mark.parametrize("shape", [(3, 1), (3, 3), (4, 2)])
@pytest.mark.parametrize("size", [1, 5000, SLOT_BYTES, SLOT_BYTES + 3])
def test_the_first_rank_gathers_and_broadcasts(size: int, shape: tuple[int, int]) -> None:
    message = bytes(index % 251 for index in range(size))

    def call(member: Collectives) -> tuple[torch.Tensor, bytes, bytes]:
        own = torch.full((size,), member.rank, dtype=torch.uint8)
        return member.gather(own), member.broadcast(b"" if member.rank else message), member.broadcast(b"")

    with group_of(*shape) as group:
        found = on_all(group, call)
    assert found[0][0].tolist() == [[rank] * size for rank in range(shape[0])]
    for rank, (gathered, got, nothing) in enumerate(found):
        assert (got, nothing) == (message, b"")
        if rank:
            assert gathered.tolist() == [[rank] * size]


def test_those_who_wait_learn_that_a_rank_is_lost() -> None:
    with group_of(3) as group, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(member.all_reduce, torch.ones(4)) for member in group[:2]]
        group[0].abort("rank 2 was killed by SIGKILL")
        group[0].abort("and more")
        with pytest.raises(RankLostError, match=r"^rank 2 was killed by SIGKILL$"):
            waiting[0].result(60)
        with pytest.raises(RankLostError, match=r"^another rank has ended$"):
            waiting[1].result(60)
        for later in (group[0], group[2]):
            with pytest.raises(RankLostError):
                later.broadcast(b"hello")


def test_the_reason_of_a_node_reaches_all_others() -> None:
    with group_of(4, 2) as group, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(group[rank].all_reduce, torch.ones(4)) for rank in (0, 1, 3)]
        group[2].abort("rank 3 was killed by SIGKILL")
        with pytest.raises(RankLostError, match=r"^rank 3 was killed by SIGKILL$"):
            waiting[0].result(60)
        for other in waiting[1:]:
            with pytest.raises(RankLostError, match=r"^another rank has ended$"):
                other.result(60)
        assert group[0].failure == "rank 3 was killed by SIGKILL"
        with pytest.raises(RankLostError, match=r"^rank 3 was killed by SIGKILL$"):
            group[0].broadcast(b"the next step")


@pytest.mark.parametrize("size", [3, 5, 1 << 20])
def test_a_node_that_sends_another_length_ends_the_group(size: int) -> None:
    with group_of(2, 2) as group, ThreadPoolExecutor(1) as pool:
        lying = pool.submit(group[1].all_reduce, torch.ones(size))
        with pytest.raises(
            RankLostError, match=rf"^node 1 at 127\.0\.0\.1 sent {4 * size:,} bytes where 16 must come$"
        ):
            group[0].all_reduce(torch.ones(4))
        with pytest.raises(RankLostError):
            lying.result(60)


def test_a_node_whose_connection_ends_within_a_step_ends_the_group() -> None:
    """Without a reason, as at the end of its process."""
    links = links_of(2)
    leader = NodeCollectives(None, links[0], node=0, nodes=2)
    for link in (*links[1].steps, *links[1].control):
        link.close()
    with pytest.raises(RankLostError, match=r"^node 1 at 127\.0\.0\.1 has closed the connection$"):
        leader.gather(torch.ones(4))
    links[0].steps[0].close()


def test_a_sum_that_a_rank_gave_up_is_not_added_to_its_next() -> None:
    with group_of(2) as group, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group[1].all_reduce, torch.full((512 << 10,), 100.0))
        group[0].abort("rank 0: can't allocate memory")
        with pytest.raises(RankLostError, match=r"^rank 0: can't allocate memory$"):
            group[0].broadcast(b"the next step")
        with pytest.raises(RankLostError, match=r"^rank 0: can't allocate memory$"):
            group[0].all_reduce(torch.ones(64 << 10))
        with pytest.raises(RankLostError, match=r"^another rank has ended$"):
            waiting.result(60)


def test_the_memory_goes_with_its_last_user() -> None:
    def num_open() -> int:
        """Of groups alone, once what earlier tests left is collected."""
        gc.collect()
        return sum("kvasir-ranks" in str(path.resolve()) for path in Path("/proc/self/fd").iterdir())

    before = num_open()
    for _ in range(20):
        with group_of(2) as group:
            pass
        del group
    assert num_open() <= before


@pytest.mark.parametrize("hosts", ["one", "several"])
@pytest.mark.parametrize(("ranks", "stages"), [(2, 2), (4, 2), (4, 4), (6, 3)])
def test_hidden_states_go_from_stage_to_stage_and_back_to_the_first_rank(ranks: int, stages: int, hosts: str) -> None:
    """Sums are of the ranks of a stage."""
    each = ranks // stages

    def call(member: StageCollectives) -> torch.Tensor:
        x = torch.full((3, SLOT_BYTES // 8), float(member.rank))
        if member.rank >= each:
            x = member.receive(torch.empty_like(x)) + member.rank // each
        member.send(member.all_reduce(x))
        return member.receive(torch.empty_like(x)) if member.rank == 0 else x

    with group_of(ranks, stages if hosts == "several" else 1, stages) as group:
        found = on_all(group, call)
    expected = float(sum(range(each)))
    for stage in range(1, stages):
        expected = (expected + stage) * each
        assert bool((found[stage * each + each - 1] == expected).all())
    assert bool((found[0] == expected).all())


def test_the_end_reaches_groups_of_which_the_first_rank_is_no_member() -> None:
    with group_of(3, stages=3) as group, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group[2].receive, torch.empty(8))
        group[0].abort("rank 1 has ended")
        with pytest.raises(RankLostError):
            waiting.result(60)


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (4, 1), (3, 3)])
def test_the_first_rank_goes_on_before_the_others_take_what_it_sends(ranks: int, nodes: int) -> None:
    """Messages and hidden states keep their order on the way, also where one stage is behind the others."""
    steps, waits = range(3), threading.Event()

    def follow(member: StageCollectives) -> list[bytes]:
        waits.wait(60)
        messages = []
        for _ in steps:
            messages += [member.broadcast(b""), member.broadcast(b"")]
            member.send(member.receive(torch.empty(1000)) + 1)
        return messages

    with group_of(ranks, nodes, ranks) as group, ThreadPoolExecutor(ranks) as pool:
        following = [pool.submit(follow, member) for member in group[1:]]
        first = group[0]
        for step in steps:
            first.broadcast(b"step %d" % step)
            first.broadcast(bytes(step))
            first.send(torch.full((1000,), float(step)))
        waits.set()
        for step in steps:
            assert bool((first.receive(torch.empty(1000)) == step + ranks - 1).all())
        for one in following:
            assert one.result(60) == [message for step in steps for message in (b"step %d" % step, bytes(step))]


def test_the_last_stage_does_not_wait_for_the_first_rank_while_its_results_fit() -> None:
    most = 16 * SLOT_BYTES // 4
    with group_of(2, 1, 2) as (first, last):
        assert first.holds([SLOT_BYTES] * 16)
        assert first.holds([1] * 16)
        assert not first.holds([1] * 17)
        assert not first.holds([SLOT_BYTES + 1] * 9)
        for _ in range(3):  # around the end of the slots
            last.send(torch.arange(most, dtype=torch.float32))
            assert torch.equal(first.receive(torch.empty(most)), torch.arange(most, dtype=torch.float32))
        last.send(torch.ones(most // 2))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(last.send, torch.ones(most))
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
            assert first.receive(torch.empty(most // 2)).sum() == most // 2
            assert first.receive(torch.empty(most)).sum() == most
            waiting.result(60)


def test_who_waits_for_room_learns_that_a_rank_is_lost() -> None:
    with group_of(3, 1, 3) as group, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group[0].send, torch.ones(17 * SLOT_BYTES // 4))
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        group[0].abort("rank 2 was killed by SIGKILL")
        with pytest.raises(RankLostError, match=r"^rank 2 was killed by SIGKILL$"):
            waiting.result(60)


def test_a_last_stage_that_sends_another_length_ends_the_group() -> None:
    with group_of(2, 2, 2) as (first, last):
        last.send(torch.ones(3))
        with pytest.raises(RankLostError, match=r"^node 1 at 127\.0\.0\.1 sent 12 bytes where 16 must come$"):
            first.receive(torch.empty(4))
