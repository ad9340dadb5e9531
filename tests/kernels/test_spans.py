"""Spans say the same whether the host or the device knows the lengths."""

import torch

from kvasir_runtime.kernels.spans import Spans

TABLES = torch.tensor([[4, 1], [2, 0], [7, 7]])
CPU = torch.device("cpu")


def on_device(starts: list[int], kv_lens: list[int], longest_query: int) -> Spans:
    begin, known = (torch.tensor(values, dtype=torch.int32) for values in (starts, kv_lens))
    return Spans.on_device(begin, known, TABLES, longest_query=longest_query)


def test_lengths_of_the_host_reach_the_device() -> None:
    spans = Spans((3, 1, 2), (3, 9, 12), TABLES, (-1, -1, -1))
    starts, kv_lens = spans.lengths()
    assert (starts.tolist(), kv_lens.tolist()) == ([0, 3, 4, 6], [3, 9, 12])
    assert (starts.dtype, kv_lens.dtype) == (torch.int32, torch.int32)
    assert (spans.longest_query, spans.num_sequences) == (3, 3)


def test_lengths_of_the_device_can_be_read_back() -> None:
    spans = on_device([0, 3, 4, 6], [3, 9, 12], 4)
    assert (list(spans.query_lens), list(spans.kv_lens)) == ([3, 1, 2], [3, 9, 12])
    assert list(spans.first_blocks) == [-1, -1, -1]
    assert (spans.longest_query, spans.num_sequences) == (4, 3)  # a bound, which nobody made tighter
    assert spans.mask(1, 0, 0).tolist() == [[True] * 9]


def test_padding_has_no_tokens_and_nothing_known() -> None:
    spans = on_device([0, 2, 2, 2], [5, 77, 77], 2)
    assert (list(spans.query_lens), list(spans.kv_lens)) == ([2, 0, 0], [5, 0, 0])


def test_both_kinds_move() -> None:
    for spans in (Spans((1, 1, 1), (5, 6, 7), TABLES, (-1, 2, -1)), on_device([0, 1, 2, 3], [5, 6, 7], 1)):
        moved = spans.moved(CPU)
        assert list(moved.kv_lens) == [5, 6, 7]
        assert list(moved.first_blocks) == list(spans.first_blocks)
        assert moved.longest_query == 1


def test_what_follows_from_spans_is_made_once() -> None:
    made: list[int] = []
    spans = on_device([0, 1, 2, 3], [5, 6, 7], 1)
    for _ in range(3):
        spans.once("key", lambda: made.append(1))
    assert made == [1]
