"""A real S3 API (moto) on loopback, with users whose signatures it checks."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, Final

import boto3
import pytest
from moto.server import ThreadedMotoServer

_MAY_READ: Final = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The URL of one that does without keys. A process has one state for all of its servers."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        try:
            host, port = server.get_host_and_port()
            yield f"http://{host}:{port}"
        finally:
            server.stop()


def client(url: str, kind: str = "s3") -> Any:
    """Of an API of AWS, as long as keys are not checked."""
    return boto3.client(
        kind, endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )


def keys_of_a_reader(url: str) -> Mapping[str, str]:
    """Of a new user who may list and read buckets, as AWS's tools name them."""
    iam = client(url, "iam")
    iam.create_user(UserName="reader")
    policy = json.dumps({"Version": "2012-10-17", "Statement": [_MAY_READ]})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


@contextlib.contextmanager
def keys_checked(url: str) -> Iterator[None]:
    """Meanwhile signatures and policies count."""
    _do_without_keys(url, requests=0)
    try:
        yield
    finally:
        _do_without_keys(url, requests=10**9)


def _do_without_keys(url: str, requests: int) -> None:
    body = str(requests).encode()
    asked = urllib.request.Request(f"{url}/moto-api/reset-auth", body, {"Content-Type": "text/plain"}, method="POST")
    urllib.request.urlopen(asked).close()
