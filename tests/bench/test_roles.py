"""Figures of a run of mixed load, and their table, from what clients saw."""

import pytest

from bench import roles
from bench.roles import CHAT, DOCUMENT, Answered, MixedLoad, RequestKind
from fakes.sse_stream import StreamSeen

LIMITS = {CHAT: (0.5, 0.05), DOCUMENT: (2.0, 0.1)}


def answered(kind: RequestKind, first_s: float, token_s: float, *, whole: bool = True) -> Answered:
    gaps = [token_s] * (kind.answer_tokens - 1)
    return Answered(
        kind=kind, seen=StreamSeen(status=200, first_s=first_s, gaps_s=gaps, has_reason=whole, is_done=whole)
    )


def test_an_answer_counts_for_goodput_where_its_first_token_and_the_later_ones_are_in_time() -> None:
    ran = [
        answered(CHAT, 0.4, 0.04),
        answered(CHAT, 0.6, 0.04),
        answered(CHAT, 0.4, 0.06),
        answered(DOCUMENT, 1.9, 0.09),
    ]
    found = roles.figures(ran, 4.0, LIMITS, handed_over=1)
    assert found["goodput [requests/s]"] == 0.5
    assert found["prompts handed over [%]"] == 25.0
    assert found["TTFT of chats, median [ms]"] == pytest.approx(400.0)
    assert found["TTFT of documents, p99 [ms]"] == pytest.approx(1900.0)


def test_a_run_with_an_answer_that_broke_has_no_figures() -> None:
    with pytest.raises(ValueError, match="1 of 2 answers broke"):
        roles.figures([answered(CHAT, 0.1, 0.01), answered(DOCUMENT, 1.0, 0.01, whole=False)], 1.0, LIMITS, 0)


def test_a_table_has_both_services_and_the_ratio_of_their_medians() -> None:
    load = MixedLoad(document_fraction=0.4, load_fraction=0.8)
    alone, other = ([{"ITL": value} for value in values] for values in ((30.0, 10.0, 20.0), (5.0, 15.0, 10.0)))
    lines = roles.table({load: dict(zip(roles.SERVICES, (alone, other), strict=True))}).splitlines()
    assert lines[2] == "| 40 % documents, 80 % of the capacity | ITL | 20 (10–30) | 10 (5–15) | 0.50 |"
