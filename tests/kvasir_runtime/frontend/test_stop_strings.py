"""Stop strings are found wherever tokens cut them, and nothing of them leaks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.frontend.stop_strings import StopMatcher

LETTERS = st.text(alphabet="ab.", min_size=1, max_size=4)


def run(stops, pieces, include=False):
    matcher = StopMatcher(stops, include=include)
    out = [matcher.push(piece) for piece in pieces]
    return "".join(out) + matcher.flush(), matcher.matched


def expected(stops, text, include):
    """The definition: the shortest prefix of text that ends with a stop; of those stops the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(stops=st.lists(LETTERS, min_size=1, max_size=4), pieces=st.lists(st.text(alphabet="ab.", max_size=5)), flag=...)
def test_any_cut_gives_what_the_definition_says(stops, pieces, flag: bool):
    assert run(stops, pieces, flag) == expected(stops, "".join(pieces), flag)


@given(stops=st.lists(LETTERS, min_size=1, max_size=4), pieces=st.lists(st.text(alphabet="ab.", max_size=5)))
def test_what_was_sent_never_has_the_beginning_of_a_stop_that_is_found_later(stops, pieces):
    matcher = StopMatcher(stops)
    sent = ""
    want, _ = expected(stops, "".join(pieces), include=False)
    for piece in pieces:
        sent += matcher.push(piece)
        assert want.startswith(sent)


@pytest.mark.parametrize(
    ("stops", "pieces", "want"),
    [
        (["\n\n"], ["one\n", "\ntwo"], ("one", "\n\n")),
        (["stop", "to"], ["a st", "op"], ("a s", "to")),
        (["aab"], ["aaab"], ("a", "aab")),
        (["你好"], ["x你", "好y"], ("x", "你好")),
        (["END"], ["EN", "EN", "x"], ("ENENx", None)),
        (["b", "ab"], ["xab"], ("x", "ab")),
    ],
)
def test_cases(stops, pieces, want):
    assert run(stops, pieces) == want


def test_text_is_held_back_only_while_it_may_become_a_stop():
    matcher = StopMatcher(["<end>"])
    assert matcher.push("hello <e") == "hello "
    assert matcher.push("x") == "<ex"


def test_the_stop_is_kept_where_it_is_requested():
    assert run([", "], ["one, two"], include=True) == ("one, ", ", ")


def test_nothing_comes_after_a_match():
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == "a"
    assert matcher.push("c") == ""
    assert matcher.flush() == ""


def test_an_empty_stop_is_a_mistake():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([""])
