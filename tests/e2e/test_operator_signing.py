"""The guard of a replica's ops port on everything real: it takes what the operator's keys sign, and nothing else."""

import base64
import http.client
import os
import time

import msgspec
import pytest

from fakes.life import DEADLINE_S, Life
from kvasir_api import names, state
from kvasir_api.ops_tokens import Signer
from kvasir_operator.desired.signing_keys import SigningKey

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def call(pod: dict, method: str, path: str, authorization: str = "") -> tuple[int, bytes]:
    """Status and body of a call from another address than the pod's."""
    connection = http.client.HTTPConnection(pod["status"]["podIP"], names.PORT_OPS, timeout=DEADLINE_S)
    try:
        connection.request(method, path, headers={"authorization": authorization} if authorization else {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def operators_signer(life: Life) -> Signer:
    """Of the key that the operator has made in the Secret of its installation."""
    where = ("-nkvasir-system", "--output=jsonpath={.data.keys}")
    text = life.kubectl("get", "secret", names.SIGNING_SECRET, *where)
    key, *_ = msgspec.json.decode(base64.b64decode(text), type=list[SigningKey])
    return Signer(key.private, wall=time.time, random=os.urandom)


async def test_a_replica_takes_what_the_operator_signs_and_nothing_else(life: Life):
    life.apply(uri="pvc://kvasir-tiny/tiny", replicas=1, autoscaling=None)
    await life.until_ready()
    (pod,) = life.pods()
    signer, instance = operators_signer(life), state.decode(call(pod, "GET", names.PATH_STATE)[1]).instance

    def reset(of: str) -> int:
        path = names.PATH_RESET_PREFIX_CACHE
        return call(pod, "POST", path, signer.authorization(of, "POST", path))[0]

    # The kubelet writes the annotation into the file when it looks at the pod again.
    await life.until(lambda: reset(instance) == 200, "the pod trusts the operator's key")
    assert reset("another") == 401

    def keys() -> str:
        return state.decode(call(pod, "GET", names.PATH_STATE)[1]).continuation_keys

    await life.until(lambda: bool(keys()), "the pod has its service's keys of continuation tokens")
    assert call(pod, "POST", names.PATH_RESET_PREFIX_CACHE)[0] == 401
    assert call(pod, "POST", names.PATH_DRAIN)[0] == 401
    assert call(pod, "GET", names.PATH_READYZ)[0] == 200
    with pytest.raises(Exception, match="forbidden"):
        life.kubectl(
            *("get", "secret", names.SIGNING_SECRET, "-nkvasir-system"),
            "--as=system:serviceaccount:kvasir-system:kvasir-gateway",
        )
