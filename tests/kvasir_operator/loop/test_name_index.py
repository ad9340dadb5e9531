"""The index of model names: who holds one, and that the answer costs the same however many services there are."""

from typing import Any

import pytest

from fakes.calls import calls
from fakes.manifests import service
from kvasir_kube.kinds import INFERENCE_SERVICE, Json
from kvasir_operator.loop.store import Store


def claimant(name: str, *, version: int = 1, created: int = 0, going: bool = False, **model: Any) -> Json:
    obj = service(model={"uri": "pvc://models/a", **model})
    time = f"2026-01-01T00:00:{created:02}Z"
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "creationTimestamp": time}
    if going:
        metadata["deletionTimestamp"] = time
    return {**obj, "metadata": {**obj["metadata"], **metadata}}


def filled(*services: Json) -> Store:
    store = Store()
    for one in services:
        store.put(INFERENCE_SERVICE, one)
    return store


MINE = claimant("mine", created=5, servedName="m")


@pytest.mark.parametrize(
    ("others", "holder"),
    [
        ([], None),
        ([claimant("old", created=1, servedName="m")], "old"),
        ([claimant("old", created=1, aliases=["m"])], "old"),
        ([claimant("m", created=1)], "m"),
        ([claimant("new", created=9, servedName="m")], None),
        ([claimant("twin", created=5, servedName="m")], None),  # of the same second the first by name
        ([claimant("a", created=5, servedName="m")], "a"),
        ([claimant("old", created=1, servedName="m", going=True)], None),
        ([claimant("old", created=3, servedName="m"), claimant("older", created=1, servedName="m")], "older"),
    ],
)
def test_a_name_is_held_by_the_oldest_service(others: list[Json], holder: str | None) -> None:
    found = filled(MINE, *others).names.conflicts(MINE)
    assert [one.holder for one in found] == ([f"default/{holder}"] if holder else [])


def test_a_name_is_free_when_its_service_renames_itself_goes_or_is_gone() -> None:
    old = claimant("old", created=1, servedName="m")
    store = filled(MINE, old)
    assert store.put(INFERENCE_SERVICE, claimant("old", version=2, created=1, servedName="n"))
    assert not store.names.conflicts(MINE)
    assert store.put(INFERENCE_SERVICE, claimant("old", version=3, created=1, aliases=["m"]))
    assert store.names.conflicts(MINE)
    assert store.put(INFERENCE_SERVICE, claimant("old", version=4, created=1, aliases=["m"], going=True))
    assert not store.names.conflicts(MINE)
    assert store.put(INFERENCE_SERVICE, claimant("old", version=5, created=1, servedName="m"))
    assert store.names.conflicts(MINE)
    assert store.drop(INFERENCE_SERVICE, ("default", "old"))
    assert not store.names.conflicts(MINE)


def test_a_service_that_is_made_again_finds_its_name_although_another_namespace_waits_for_it() -> None:
    """Else the clients of the first would come to the second, with their keys and prompts."""
    first = claimant("first", created=1, servedName="m")
    theirs = claimant("theirs", created=5, servedName="m")
    theirs["metadata"]["namespace"] = "other"
    store = filled(first, theirs)
    (found,) = store.names.conflicts(theirs)
    assert (found.holder, found.refused) == ("default/first", True)
    waiting = theirs | {"status": {"refusedNames": ["m"]}}
    waiting["metadata"] |= {"resourceVersion": "2"}
    store.put(INFERENCE_SERVICE, waiting)
    store.drop(INFERENCE_SERVICE, ("default", "first"))
    (found,) = store.names.conflicts(waiting)
    assert (found.holder, found.refused) == ("", True)
    again = claimant("first", version=9, created=59, servedName="m")
    store.put(INFERENCE_SERVICE, again)
    assert not store.names.conflicts(again)
    (found,) = store.names.conflicts(waiting)
    assert (found.holder, found.refused) == ("default/first", True)


def test_a_reserved_name_goes_to_its_namespace_although_another_had_it() -> None:
    """The status that follows is what gateways read."""
    first, theirs = claimant("first", created=1, servedName="m"), claimant("theirs", created=5, servedName="m")
    theirs["metadata"]["namespace"] = "models"
    theirs["status"] = {"refusedNames": ["m"]}
    store = Store({"m": "models"})
    store.put(INFERENCE_SERVICE, first)
    store.put(INFERENCE_SERVICE, theirs)
    (found,) = store.names.conflicts(first)
    assert (found.reserved_for, found.refused) == ("models", True)
    assert not store.names.conflicts(theirs)


def test_the_qualified_name_of_a_service_is_not_to_be_had() -> None:
    claims = claimant("older", created=1, servedName="default/mine")
    store = filled(MINE, claims)
    (found,) = store.names.conflicts(claims)
    assert (found.served_name, found.holder, found.refused) == ("default/mine", "default/mine", False)
    store.drop(INFERENCE_SERVICE, ("default", "mine"))
    assert not store.names.conflicts(claims)


def test_it_costs_the_same_with_a_thousand_services() -> None:
    counted = []
    for number in (1, 1000):
        store = filled(MINE, *(claimant(f"s{i}") for i in range(number)), claimant("old", created=1, aliases=["m"]))
        with calls() as found:
            assert store.names.conflicts(MINE)
        counted.append(found.total())
    assert counted[0] == counted[1] <= 40
