"""Why a request went where it did: the last choices are kept, explained, and explained the same again from a line."""

import json

import pytest
from click.testing import CliRunner
from msgspec import structs

from kvasir_gateway import choice_records
from kvasir_gateway.__main__ import gateway
from kvasir_gateway.choice_records import ChoiceInputs, ChoiceRecords
from kvasir_gateway.choose import Candidate, ChoicePolicy, EndpointLoad, RequestSize
from kvasir_gateway.queue_room import QueueRoom

FAST = EndpointLoad(prefill_tokens_per_s=1000.0, stall_fraction=0.5, decode_slope_s=0.001, running=2)
PODS = (
    Candidate(address="10.0.0.1:8000", load=FAST),
    Candidate(address="10.0.0.2:8000", load=FAST, cached_tokens=800),
    Candidate(address="[fd00::3]:8000"),
)
SIZE = RequestSize(prompt_tokens=1000, output_tokens=100)
EXPLAINED = """\
request a of service n/s at 2026-11-23T04:00:00.500+00:00: 10.0.0.2:8000, cheapest of 3
  prompt of about 1000 tokens, answer of about 100; costs in seconds
  endpoint        cost        wait    compute  stall   decode  later   silence  uncached  requests
  10.0.0.2:8000   0.8000      0.0000  0.2000   0.2000  0.4000  0.0000  0.0000   200       2
  10.0.0.1:8000   2.4000      0.0000  1.0000   1.0000  0.4000  0.0000  0.0000   1000      2
  [fd00::3]:8000  no reading  -       -        -       -       -       -        -         0
"""


def recorded(candidates=PODS, *, request_id="a", strategy="cost", size=SIZE, seed=7, holder=""):
    records = ChoiceRecords(ChoicePolicy(strategy=strategy))
    inputs = ChoiceInputs(candidates=candidates, request=size, seed=seed)
    records.add(request_id, "n/s", inputs, at_s=1795406400.5, holder=holder)
    return records.find(request_id)


def test_it_names_the_costs_of_all_endpoints():
    assert choice_records.explained(recorded()) == EXPLAINED


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"candidates": (), "holder": "10.0.0.9:8000"}, "10.0.0.9:8000, which holds what it continues"),
        ({"candidates": PODS[2:]}, "[fd00::3]:8000, no reading of 1"),
        ({"candidates": PODS[:1]}, "10.0.0.1:8000, the only one of 1"),
        ({"strategy": "round-robin"}, "10.0.0.1:8000, in turn of 2"),
        ({"size": RequestSize(prompt_tokens=10, session="x")}, "session of 3"),
    ],
    ids=["holder", "no reading", "only", "turn", "session"],
)
def test_every_kind_of_choice_has_its_words(fields, words):
    if fields.get("strategy") == "round-robin":
        fields["candidates"] = PODS[:2]
    assert words in choice_records.explained(recorded(**fields)).splitlines()[0]


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
@pytest.mark.parametrize("strategy", ["cost", "least-load", "round-robin"])
def test_a_replay_prints_the_same_bytes(tmp_path, strategy, seed):
    record = recorded(
        (PODS[0], *(Candidate(address=f"p{n}:1", load=FAST) for n in range(5))), strategy=strategy, seed=seed
    )
    line = choice_records.encode(record)
    assert choice_records.decode(line) == record
    (tmp_path / "lines").write_bytes(line + b"\n" + line + b"\n")
    result = CliRunner().invoke(gateway, ["replay", str(tmp_path / "lines")])
    assert result.output == 2 * choice_records.explained(record)


@pytest.mark.parametrize("line", ["", "x", "{}", '{"request_id": 5}', json.dumps({"request_id": "a"})])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    (tmp_path / "lines").write_text(f"{line}\n")
    result = CliRunner().invoke(gateway, ["replay", str(tmp_path / "lines")])
    assert result.exit_code == 1
    assert "line 1 is no record of a choice" in result.output


def test_the_oldest_are_forgotten_by_the_number_of_their_candidates():
    records = ChoiceRecords(ChoicePolicy(), most_candidates=10)
    for number in range(20):
        records.add(str(number), "n/s", ChoiceInputs(candidates=PODS), at_s=0.0)
    assert [number for number in range(20) if records.find(str(number))] == [18, 19]


def test_of_two_requests_with_one_id_the_later_one_is_kept():
    records = ChoiceRecords(ChoicePolicy(), most_candidates=10)
    for _ in range(10):
        for address in ("first", "second"):
            records.add("a", "n/s", ChoiceInputs(candidates=(Candidate(address=address),)), at_s=0.0)
    assert records.find("a").candidates[0].address == "second"


@pytest.mark.parametrize("request_id", ["", "x" * 129])
def test_what_is_no_id_is_not_kept(request_id):
    assert recorded(request_id=request_id) is None


def test_a_record_has_no_text_of_a_prompt():
    assert set(json.loads(choice_records.encode(recorded()))["request"]) == {
        "prompt_tokens",
        "output_tokens",
        "session",
        "turn",
        "gateway",
        "num_sequences",
    }


def test_an_explanation_names_full_endpoints():
    load = EndpointLoad(running=1, waiting=1, room=QueueRoom(places=1, most_requests=1))
    candidates = (
        Candidate(address="a", sent_s=0, cold_s=0, load=load),
        Candidate(address="b", sent_s=0, cold_s=0, load=EndpointLoad()),
    )
    record = choice_records.ChoiceRecord(request_id="x", service="n/s", at="now", candidates=candidates)
    first, _, _, *rows = choice_records.explained(choice_records.decode(choice_records.encode(record))).splitlines()
    assert first == "request x of service n/s at now: b, the only one of 2, 1 of them full"
    assert [row.split()[0] for row in rows] == ["b", "a"]
    assert rows[1].split()[1] == "full"
    text = choice_records.explained(structs.replace(record, candidates=candidates[:1]))
    assert "now: a, the only one of 1, all of them full" in text
