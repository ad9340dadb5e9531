"""Workloads: the same requests for the same numbers, other words for another seed, lengths as asked."""

import pytest

from kvasir_runtime.bench.workload import PRESETS, Workload, lengths, requests

MIXED = Workload(requests=20, concurrency=4, prompt_tokens=(5, 30), output_tokens=(1, 9), shared_tokens=12)


def test_lengths_follow_from_the_workload_and_words_from_the_seed():
    first, again, other = requests(MIXED, 1), requests(MIXED, 1), requests(MIXED, 2)
    assert first == again
    assert [task.words for task in first] == [task.words for task in other]
    assert {task.prompt for task in first}.isdisjoint(task.prompt for task in other)
    assert all(17 <= len(task.prompt.split()) == task.words <= 42 for task in first)
    assert all(1 <= task.output_tokens <= 9 for task in first)
    assert len({task.words for task in first}) > 5


def test_only_the_shared_prefix_is_shared():
    made = [task.prompt.split() for task in requests(MIXED, 3)]
    assert len({tuple(words[:12]) for words in made}) == 1
    assert len({tuple(words[12:17]) for words in made}) == 20


def test_presets_are_the_harness_workloads():
    totals = {name: sum(t.words for t in requests(workload, 0)) for name, workload in PRESETS.items()}
    assert totals["w1"] == 3 * 128
    assert totals["w3"] == 32 * (1024 + 64)
    assert PRESETS["w2"].concurrency == len(requests(PRESETS["w2"], 0)) == 32


@pytest.mark.parametrize(("text", "want"), [("128", (128, 128)), ("16-512", (16, 512)), ("1-1", (1, 1))])
def test_lengths_are_a_number_or_a_range(text, want):
    assert lengths(text) == want


@pytest.mark.parametrize("text", ["", "0", "-5", "9-3", "a", "1-", "2000000"])
def test_other_lengths_are_refused(text):
    with pytest.raises(ValueError, match="not a number of tokens"):
        lengths(text)
