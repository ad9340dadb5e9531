"""What was published is found by its tenant only, and forgotten for one tenant alone."""

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api import hashes
from kvasir_api.state import RuntimeState


def test_a_tenants_blocks_are_forgotten_and_the_others_stay():
    served = serving(runner=FakeRunner(model=FakeModel(table=tuple(range(1, 61)))))
    for salt in (b"a" * 32, b"b" * 32):
        served.submit(request(salt.hex(), range(1, 13), max_tokens=1, salt=salt))
        served.finish()
    before = served.scheduler.report(RuntimeState()).kv
    served.submit(request("runs", range(1, 13), max_tokens=4, salt=b"a" * 32))
    served.step()
    served.scheduler.forget(hashes.owner_of_salt(b"a" * 32))
    served.finish()
    after = served.scheduler.report(RuntimeState()).kv
    assert (before.cached_tokens, after.pinned_tokens, after.free_tokens) == (24, 0, 256 - after.cached_tokens)
    for name, salt, cached in (("x", b"a" * 32, 0), ("y", b"b" * 32, 8)):
        served.submit(request(name, range(1, 13), max_tokens=1, salt=salt))
        served.finish()
        assert served.answers[name].cached_tokens == cached
