"""A prompt is predicted to be computed when the scheduler's order computes it: short ones pass long ones."""

import pytest

from kvasir_runtime.core.prompt_order import KEPT, PromptSizes, tokens_until


def until(running, waiting, own, *, lookahead=16, share=0.0):
    return tokens_until(running, waiting, own, lookahead=lookahead, shorter_share=lambda _: share)


@pytest.mark.parametrize(
    ("running", "waiting", "own", "want"),
    [
        ([], [], 100, 100),
        ([100], [], 500, 600),  # it is longer: it waits for all
        ([1000], [], 100, 200),  # it passes in one half of the steps, the other goes to the first
        ([1000], [100], 300, 800),  # the shortest passes first
        ([1000], [300], 100, 200),
        ([300, 300], [300], 300, 1200),  # equal ones keep their order
        ([150], [], 100, 200),
        ([], [1000, 800], 900, 2700),  # 800 pass, then 200 are left of the first
    ],
)
def test_the_shortest_passes_in_half_of_each_step(running, waiting, own, want):
    assert until(running, waiting, own) == (want, 0)


@pytest.mark.parametrize(("lookahead", "want"), [(1, 2150), (2, 300), (3, 300)])
def test_only_so_many_that_wait_are_passed(lookahead, want):
    assert until([], [2000, 50], 100, lookahead=lookahead) == (want, 0)


@pytest.mark.parametrize(
    ("running", "own", "share", "want"),
    [
        ([], 100, 0.25, (133, 33)),  # a quarter of each step is for those that come later
        ([], 100, 0.9, (200, 100)),  # half at most
        ([1000], 100, 0.25, (400, 100)),  # half of the half in which it passes
        ([100], 50, 0.5, (298, 148)),  # that half is full: it goes on when the first is computed
    ],
)
def test_shorter_prompts_that_arrive_later_pass(running, own, share, want):
    assert until(running, [], own, share=share) == want


def test_later_ones_pass_only_what_is_near_the_front():
    assert until([], [1000], 2000, lookahead=2, share=0.5) == (1000 + 4000, 2000)


def test_the_share_of_shorter_prompts_is_of_tokens():
    sizes = PromptSizes()
    assert sizes.shorter_share(100) == 0.0
    for num_tokens in (10, 30, 60):
        sizes.add(num_tokens)
    assert [sizes.shorter_share(size) for size in (10, 11, 60, 61)] == [0.0, 0.1, 0.4, 1.0]
    for _ in range(KEPT):
        sizes.add(50)
    assert [sizes.shorter_share(size) for size in (50, 51)] == [0.0, 1.0]
