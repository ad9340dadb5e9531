"""Which keys the replicas of a service get: others for each service, and the next one before it signs."""

import base64

from kvasir_operator.desired.continuation_keys import continuation_keys
from kvasir_operator.desired.signing_keys import OVERLAP_S, SigningKey

OLD = SigningKey(private=base64.b64encode(b"o" * 32).decode(), created=0.0)
NEW = SigningKey(private=base64.b64encode(b"n" * 32).decode(), created=100.0)


def test_each_service_has_others_and_the_same_each_time():
    found = [continuation_keys([OLD, NEW], uid, 0.0) for uid in ("a", "b", "a")]
    assert found[0] == found[2]
    assert len({*found[0], *found[1]}) == 4
    assert {len(key) for key in found[0]} == {32}
    assert continuation_keys([], "a", 0.0) == ()


def test_a_new_key_is_accepted_first_then_signs_and_then_the_old_one_goes():
    (old,), (new,) = (continuation_keys([key], "a", 0.0) for key in (OLD, NEW))
    times = (100.0, 100.0 + OVERLAP_S, 100.0 + 2 * OVERLAP_S)
    assert [continuation_keys([OLD, NEW], "a", now) for now in times] == [(old, new), (new, old), (new,)]
