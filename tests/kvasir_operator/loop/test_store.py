"""The store finds objects by the service that they name now, whatever they named before."""

from hypothesis import given
from hypothesis import strategies as st

from kvasir_api import names
from kvasir_kube.kinds import POD, Json, Key
from kvasir_operator.loop.store import Store

SERVICES = ("", "chat", "other")
WORDS = st.tuples(st.sampled_from(("put", "drop")), st.sampled_from(("a", "b")), st.sampled_from(SERVICES))


def pod(name: str, service: str, version: int) -> Json:
    labels = {names.LABEL_SERVICE: service} if service else {}
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": str(version),
            "resourceVersion": str(version),
            "labels": labels,
        },
    }


@given(st.lists(WORDS, max_size=20))
def test_an_object_is_found_under_what_it_names_now(words: list[tuple[str, str, str]]) -> None:
    store, known = Store(), dict[Key, str]()
    for version, (verb, name, service) in enumerate(words, start=1):
        if verb == "put":
            assert store.put(POD, pod(name, service, version))
            known["ns", name] = service
        else:
            assert store.drop(POD, ("ns", name)) == (known.pop(("ns", name), None) is not None)
        for asked in SERVICES:
            found = [obj["metadata"]["name"] for obj in store.of(POD, ("ns", asked))]
            assert found == sorted(name for (_, name), named in known.items() if named == asked)


def test_a_late_list_does_not_bring_back_what_was_made_again() -> None:
    store = Store()
    assert store.put(POD, pod("a", "chat", 7))
    assert not store.put(POD, pod("a", "chat", 3))
    found = store.get(POD, ("ns", "a"))
    assert found is not None
    assert found["metadata"]["uid"] == "7"


def test_of_a_list_only_what_is_new_is_kept() -> None:
    store = Store()
    managed = {"managedFields": [{"manager": "kubelet"}]}
    first, second = pod("a", "chat", 3), pod("a", "chat", 4)
    assert store.put(POD, {**first, "metadata": {**first["metadata"], **managed}})
    known = store.get(POD, ("ns", "a"))
    assert store.known(POD, ("ns", "a"), "3") is known
    assert store.known(POD, ("ns", "a"), "4") is None
    assert store.known(POD, ("ns", "b"), "3") is None
    assert store.kept(POD, {**second, "metadata": {**second["metadata"], **managed}}) == second


def test_pods_of_one_shape_are_remembered_once() -> None:
    store = Store()
    for name, version in (("a", 1), ("b", 2)):
        assert store.put(POD, {**pod(name, "chat", version), "spec": {"containers": [{"image": "kvasir"}]}})
    one, other = (store.get(POD, ("ns", name)) for name in "ab")
    assert one is not None
    assert other is not None
    assert one["spec"] is other["spec"]
