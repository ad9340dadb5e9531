"""Streams that a runner computes in each way that there is."""

import random
from collections.abc import Callable

from fakes.by_hand import Hand, Stream


def mixed_streams(hand: Hand, prompt: Callable[..., tuple[int, ...]]) -> tuple[Stream, ...]:
    """With their answers: whole, in chunks, behind a prefix where the hand can share one, preempted and computed again,
    and several in steps of random sizes, the last four. prompt: tokens of a length and a seed.
    """
    chooser = random.Random(1)
    whole, chunked, first = Stream(prompt=prompt(40)), Stream(prompt=prompt(57)), Stream(prompt=prompt(45))
    hand.run([whole], 10)
    hand.run([chunked, first], 10, chunk=7)
    warm = Stream(prompt=first.prompt[:40] + prompt(9, seed=1))
    if hand.shares:
        hand.share(warm, first, 5)
    hand.run([warm], 6)
    hand.preempt(chunked)
    streams = [Stream(prompt=prompt(length, seed=9)) for length in (1, 8, 31, 100)]
    while live := [stream for stream in streams if len(stream.answer) < 6]:
        moving = chooser.sample(live, k=min(len(live), 3))
        hand.step([(s, min(len(s.tokens) - s.computed, chooser.choice((1, 5, 40)))) for s in moving])
    hand.run([chunked], 16, chunk=11)
    return (whole, chunked, first, warm, *streams)
