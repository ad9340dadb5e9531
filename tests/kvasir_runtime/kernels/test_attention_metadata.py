"""Spans say the same whether the host or the device knows the lengths."""

import torch

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata

TABLES = torch.tensor([[4, 1], [2, 0], [7, 7]])
CPU = torch.device("cpu")


def on_device(starts: list[int], kv_lens: list[int], longest_query: int) -> AttentionMetadata:
    begin, known = (torch.tensor(values, dtype=torch.int32) for values in (starts, kv_lens))
    return AttentionMetadata.on_device(begin, known, TABLES, longest_query=longest_query)


def test_lengths_of_the_host_reach_the_device() -> None:
    attn_metadata = AttentionMetadata((3, 1, 2), (3, 9, 12), TABLES)
    starts, kv_lens = attn_metadata.lengths()
    assert (starts.tolist(), kv_lens.tolist()) == ([0, 3, 4, 6], [3, 9, 12])
    assert (starts.dtype, kv_lens.dtype) == (torch.int32, torch.int32)
    assert (attn_metadata.longest_query, attn_metadata.num_sequences) == (3, 3)


def test_lengths_of_the_device_can_be_read_back() -> None:
    attn_metadata = on_device([0, 3, 4, 6], [3, 9, 12], 4)
    assert (list(attn_metadata.query_lens), list(attn_metadata.kv_lens)) == ([3, 1, 2], [3, 9, 12])
    assert (attn_metadata.longest_query, attn_metadata.num_sequences) == (4, 3)  # a bound, which nobody made tighter
    assert attn_metadata.mask(1, 0, 0).tolist() == [[True] * 9]


def test_padding_has_no_tokens_and_nothing_known() -> None:
    attn_metadata = on_device([0, 2, 2, 2], [5, 77, 77], 2)
    assert (list(attn_metadata.query_lens), list(attn_metadata.kv_lens)) == ([2, 0, 0], [5, 0, 0])


def test_both_kinds_move() -> None:
    for attn_metadata in (
        AttentionMetadata((1, 1, 1), (5, 6, 7), TABLES),
        on_device([0, 1, 2, 3], [5, 6, 7], 1),
    ):
        moved = attn_metadata.moved(CPU)
        assert list(moved.kv_lens) == [5, 6, 7]
        assert moved.longest_query == 1


def test_what_follows_from_spans_is_made_once() -> None:
    made: list[int] = []
    attn_metadata = on_device([0, 1, 2, 3], [5, 6, 7], 1)
    for _ in range(3):
        attn_metadata.once("key", lambda: made.append(1))
    assert made == [1]
