"""What gateways get of Tenants and their Secrets, and what each Tenant's status says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api import tenant_keys
from kvasir_api.tenant_keys import KeyHash, TenantGrant, TenantKeys
from kvasir_operator.desired.tenant_keys import (
    MOST_KEYS,
    MOST_SECRET_KEYS,
    MOST_SECRETS,
    SecretReading,
    published,
    reading_of,
    secrets_of,
    unpublished,
)

NOW = 1000.0
NOTHING = TenantKeys()


def tenant(name="t", *, namespace="models", secret="keys", created="2026-01-01T00:00:00Z", **spec):
    metadata = {"namespace": namespace, "name": name, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"secretName": secret, **spec}}


def read(*keys, **entries):
    found = {"keys": keys, **entries} if keys else entries
    return SecretReading(
        outcome="read",
        entries={name: tuple(tenant_keys.digest(key.encode()) for key in values) for name, values in found.items()},
    )


def digest(key):
    return tenant_keys.digest(key.encode())


def one(made):
    (grant,) = made.keys.tenants
    (finding,) = made.findings
    return grant, finding


def publish(*tenants, before=NOTHING, now=NOW, **secrets):
    return published(tenants, {("models", name): reading for name, reading in secrets.items()}, before, now)


def test_keys_are_hashed_one_a_line():
    assert reading_of({"keys": b" a \n\nb\r\na\n"}) == read("a", "b")


def test_a_tenant_has_the_keys_of_its_secret():
    grant, finding = one(publish(tenant(), keys=read("one", "two")))
    assert grant == TenantGrant(
        namespace="models", name="t", keys=(KeyHash(sha256=digest("one")), KeyHash(sha256=digest("two")))
    )
    assert (finding.ready, finding.keys, finding.message) == (True, 2, "gateways accept 2 keys")


def test_an_entry_of_a_shared_secret_has_its_keys_alone():
    grant, _ = one(publish(tenant(entry="b"), keys=read(a=("x",), b=("y",))))
    assert [key.sha256 for key in grant.keys] == [digest("y")]


CASES = {
    "services": (["s"], ("s",), "services"),
    "limits.requestsPerMinute": ({"requestsPerMinute": 5}, 5, "requests_per_minute"),
    "limits.tokensPerMinute": ({"tokensPerMinute": 6}, 6, "tokens_per_minute"),
    "limits.concurrentRequests": ({"concurrentRequests": 7}, 7, "concurrent_requests"),
    "priority": (-2, -2, "priority"),
    "weight": (3, 3, "weight"),
}


@pytest.mark.parametrize("path", CASES)
def test_every_field_of_the_spec_reaches_the_gateways(path):
    value, wanted, field = CASES[path]
    grant, _ = one(publish(tenant(**{path.partition(".")[0]: value}), keys=read("k")))
    plain, _ = one(publish(tenant(), keys=read("k")))
    assert getattr(grant, field) == wanted != getattr(plain, field)


def test_a_key_that_left_is_accepted_for_its_grace():
    first = publish(tenant(graceSeconds=60), keys=read("old"))
    second = publish(tenant(graceSeconds=60), keys=read("new"), before=first.keys)
    grant, finding = one(second)
    assert grant.keys == (KeyHash(sha256=digest("new")), KeyHash(sha256=digest("old"), until=1060.0))
    assert finding.keys == 2
    later = publish(tenant(graceSeconds=60), keys=read("new"), before=second.keys, now=1030.0)
    assert later.keys == second.keys, "the grace does not begin again"
    assert len(one(publish(tenant(graceSeconds=60), keys=read("new"), before=later.keys, now=1060.0))[0].keys) == 1


def test_a_key_that_comes_back_has_no_end():
    first = publish(tenant(graceSeconds=60), keys=read("old"))
    second = publish(tenant(graceSeconds=60), keys=read("new"), before=first.keys)
    third = publish(tenant(graceSeconds=60), keys=read("new", "old"), before=second.keys)
    assert {key.until for key in one(third)[0].keys} == {0.0}


def test_without_a_grace_a_key_ends_at_once_also_one_that_is_in_its_grace():
    first = publish(tenant(graceSeconds=60), keys=read("old"))
    second = publish(tenant(graceSeconds=60), keys=read("new"), before=first.keys)
    third = publish(tenant(graceSeconds=0), keys=read("new"), before=second.keys)
    assert [key.sha256 for key in one(third)[0].keys] == [digest("new")]


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (SecretReading(outcome="missing"), "Secret keys of spec.secretName does not exist"),
        (SecretReading(outcome="unlabelled"), 'lacks the label serving.kvasir.dev/tenant-keys: "true"'),
        (read(other=()), "holds no key"),
    ],
)
def test_a_tenant_without_keys_closes_its_namespace(reading, words):
    grant, finding = one(publish(tenant(), keys=reading))
    assert grant.keys == ()
    assert (finding.reason, finding.ready) == ("KeysMissing", False)
    assert words in finding.message


def test_a_namespace_whose_secrets_may_not_be_read_is_left_to_its_replicas():
    made = publish(tenant(), keys=SecretReading(outcome="forbidden"), before=publish(tenant(), keys=read("k")).keys)
    assert made.keys == NOTHING
    assert made.findings[0].reason == "KeysUnread"
    assert "kvasir-tenant-keys" in made.findings[0].message


def test_where_one_secret_may_be_read_the_others_close_their_tenants():
    made = publish(
        tenant("a", secret="one"), tenant("b", secret="two"), one=read("k"), two=SecretReading(outcome="forbidden")
    )
    assert {grant.name: len(grant.keys) for grant in made.keys.tenants} == {"a": 1, "b": 0}


def test_an_api_server_that_does_not_answer_changes_no_keys():
    before = publish(tenant(), keys=read("k")).keys
    unknown = SecretReading(outcome="unknown")
    assert publish(tenant(), keys=unknown, before=before).keys == before
    assert publish(tenant(), keys=unknown).keys == NOTHING, "a tenant that is new closes nothing before it was read"


def test_a_key_of_two_tenants_is_that_of_the_older_one():
    older, newer = tenant("z", created="2026-01-01T00:00:00Z"), tenant("a", created="2026-02-01T00:00:00Z", secret="s2")
    made = publish(newer, older, keys=read("k"), s2=read("k", "own"))
    assert {g.name: len(g.keys) for g in made.keys.tenants} == {"z": 1, "a": 1}
    (finding,) = [found for found in made.findings if found.tenant[1] == "a"]
    assert "Tenant z lists too" in finding.message


def test_one_key_may_be_of_tenants_of_two_namespaces():
    tenants = tenant(), tenant(namespace="other")
    secrets = {("models", "keys"): read("k"), ("other", "keys"): read("k")}
    made = published(tenants, secrets, NOTHING, NOW)
    assert [(grant.id, len(grant.keys)) for grant in made.keys.tenants] == [("models/t", 1), ("other/t", 1)]


def test_a_spec_that_is_none_has_no_keys_and_says_where():
    grant, finding = one(publish(tenant(weight=0), keys=read("k")))
    assert (grant.keys, finding.reason) == ((), "InvalidSpec")
    assert finding.message.startswith("spec.weight")


def test_each_secret_is_named_once():
    tenants = [tenant("a"), tenant("b"), tenant("c", namespace="other"), {"metadata": {"name": "x"}, "spec": {}}]
    assert list(secrets_of(tenants)) == [("models", "keys"), ("other", "keys")]


def test_of_a_namespace_the_secrets_of_the_oldest_tenants_are_read():
    tenants = [tenant(f"t{n}", secret=f"s{n}", created=f"{n:04}") for n in range(MOST_SECRETS + 2)]
    wanted = secrets_of([*reversed(tenants), tenant(namespace="other", created="9999")])
    assert [name for name, is_read in wanted.items() if not is_read] == [
        ("models", f"s{n}") for n in (MOST_SECRETS, MOST_SECRETS + 1)
    ]
    grant, finding = one(publish(tenant(), keys=SecretReading(outcome="exceeding")))
    assert (grant.keys, finding.reason, finding.ready) == ((), "KeysExceeded", False)


def test_a_tenant_has_so_many_keys_with_those_in_their_grace():
    """A Secret that is replaced again and again must not fill the document with keys that left it."""
    keys = NOTHING
    for number in range(3):
        made = publish(
            tenant(graceSeconds=60), keys=read(*(f"{number}-{n}" for n in range(MOST_KEYS - 10))), before=keys
        )
        keys = made.keys
    grant, finding = one(made)
    assert (len(grant.keys), sum(1 for key in grant.keys if not key.until)) == (MOST_KEYS, MOST_KEYS - 10)
    assert (finding.reason, finding.keys) == ("KeysExceeded", MOST_KEYS)


def test_a_secret_with_more_keys_than_are_read_says_so():
    reading = reading_of({"a": b"first", "b": b"\n".join(b"%d" % n for n in range(MOST_SECRET_KEYS))})
    assert sum(map(len, reading.entries.values())) == MOST_SECRET_KEYS
    grant, finding = one(publish(tenant(entry="a"), keys=reading))
    assert (len(grant.keys), finding.reason) == (1, "KeysExceeded")


def test_a_namespace_that_has_too_much_leaves_the_others_theirs_and_stays_closed():
    """All of an installation is one Secret, which the API server refuses when it is too large."""
    many = tuple(digest(f"k{n}") for n in range(MOST_KEYS))
    greedy = [tenant(f"g{n:02}", secret=f"s{n}", namespace="greedy", created=f"{n:04}") for n in range(30)]
    secrets = {
        ("greedy", f"s{n}"): SecretReading(outcome="read", entries={"k": tuple(d[:30] + b"%02d" % n for d in many)})
        for n in range(30)
    }
    secrets["models", "keys"] = read("k")
    made = published([*greedy, tenant()], secrets, NOTHING, NOW)
    assert len(tenant_keys.encode(made.keys)) < 1 << 20
    findings = {finding.tenant: finding for finding in made.findings}
    assert findings["models", "t"].reason == findings["greedy", "g00"].reason == "KeysPublished"
    assert (findings["greedy", "g29"].reason, findings["greedy", "g29"].keys) == ("KeysExceeded", 0)
    assert len(findings) == 31
    names = [f"{n:0200}" for n in range(6000)]
    crowded = [tenant(namespace=name) for name in names]
    secrets = {(name, "keys"): read("k", *(f"{n}" for n in range(9))) for name in names}
    made = published(crowded, secrets, NOTHING, NOW)
    assert {grant.namespace for grant in made.keys.tenants} == set(names), "none is opened"
    assert {finding.reason for finding in made.findings} == {"KeysExceeded"}


def test_what_could_not_be_written_is_told_to_the_tenants_that_changed():
    before = publish(tenant("a", secret="s"), tenant("b"), s=read("x"), keys=read("y")).keys
    made = publish(tenant("a", secret="s"), tenant("b"), s=read("x"), keys=read("z", "u"), before=before)
    same, changed = unpublished(made, before, "too long")
    assert (same.reason, same.keys) == ("KeysPublished", 1)
    assert (changed.reason, changed.keys, changed.ready) == ("KeysUnpublished", 1, False)
    assert changed.message.endswith("too long")


LETTERS = st.sets(st.sampled_from("abcd"))


@given(st.lists(st.tuples(LETTERS, st.integers(0, 50), st.integers(0, 40)), max_size=12))
def test_a_key_is_accepted_while_listed_and_for_its_grace_and_no_longer(history):
    """Of one tenant whose Secret and grace change; the grace is the one in force when a key left, or a later shorter
    one."""
    now, keys, ends = NOW, NOTHING, {}
    listed: set[str] = set()
    for found, grace, passed in history:
        now += passed
        ends = {key: end for key, end in ends.items() if key not in found}
        ends |= dict.fromkeys(listed - found, now + grace)
        ends = {key: min(end, now + grace) for key, end in ends.items() if min(end, now + grace) > now}
        listed = found
        keys = publish(tenant(graceSeconds=grace), keys=read(k=tuple(found)), before=keys, now=now).keys
        accepted = {key.sha256 for key in keys.tenants[0].keys if key.valid(now)}
        assert accepted == {digest(key) for key in {*listed, *ends}}
