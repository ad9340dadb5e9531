"""Responses in memory: bounded in bytes, number and age; the least recently used go first."""

from kvasir_runtime.server.api.responses.store import ResponseStore, StoredResponse, StoreLimits


def store(**bounds):
    now = [0.0]
    return ResponseStore(StoreLimits(**{"max_bytes": 100, **bounds}), lambda: now[0]), now


def stored(size_bytes=30):
    return StoredResponse(
        document={"output": [{"type": "message"}]}, items=[{"type": "reasoning"}], size_bytes=size_bytes
    )


def kept(made, ids="abcdef"):
    return [name for name in ids if name in made._kept]


def test_the_least_recently_used_goes_first():
    made, _ = store()
    for name in "abc":
        made.put(name, stored())
    assert made.get("a") is not None
    made.put("d", stored())
    assert kept(made) == ["a", "c", "d"]
    assert made.size_bytes == 90


def test_a_response_of_another_tenant_is_not_found():
    made, _ = store()
    made.put("a", stored())
    made._kept["a"].owner = b"one"
    assert [made.get("a", owner) is None for owner in (b"one", b"two", b"")] == [False, True, True]
    assert kept(made) == ["a"]


def test_an_end_may_cost_others_their_place():
    made, _ = store()
    for name in "abc":
        made.put(name, stored())
    made.finish("c", {"status": "completed", "output": []}, 20)
    assert kept(made) == ["b", "c"]
    assert made.get("c").document["status"] == "completed"
    assert not made.get("c").open
    made.finish("a", {}, 1000)
    assert made.size_bytes == 80, "what is gone does not come back"


def test_what_is_too_large_alone_is_not_kept():
    made, _ = store()
    made.put("a", stored(101))
    assert (len(made), made.size_bytes) == (0, 0)


def test_their_number_is_bounded():
    made, _ = store(max_responses=2)
    for name in "abc":
        made.put(name, stored(1))
    assert kept(made) == ["b", "c"]


def test_old_ones_are_gone_also_where_they_were_used():
    made, now = store(max_age_s=10.0)
    made.put("a", stored())
    now[0] = 9.0
    made.put("b", stored())
    assert made.get("a") is not None
    now[0] = 11.0
    assert made.get("a") is None
    assert made.get("b") is not None
    now[0] = 20.0
    made.put("c", stored())
    assert kept(made) == ["c"]
    assert made.size_bytes == 30


def test_a_deleted_one_frees_its_bytes():
    made, _ = store()
    made.put("a", stored())
    assert made.delete("a")
    assert not made.delete("a")
    assert made.size_bytes == 0


def test_a_conversation_is_what_was_asked_and_said():
    assert [item["type"] for item in stored().conversation] == ["reasoning", "message"]


def test_nothing_is_kept_where_there_is_no_room():
    assert not store(max_bytes=0)[0].keeps
    assert store()[0].keeps
