"""Models in buckets by the S3 API: of AWS, Google Cloud Storage (by HMAC keys) and what else speaks it.

The only module that uses boto3, which finds credentials also where a pod has a role (web identity, instance metadata).
"""

import base64
import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from kvasir_api import model_uri
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch.http_client import reason
from kvasir_runtime.fetch.model_files import (
    BrokenTransferError,
    Checksum,
    RemoteFile,
    RemoteModel,
    Transfer,
    checked_names,
    is_needed,
)
from kvasir_runtime.fetch.settings import SECRET, SourceSettings

_GCS_ENDPOINT: Final = "https://storage.googleapis.com"
_MOST_OBJECTS: Final = 10_000
_NO_PARTS: Final = (400, 404, 405, 416, 501)
"""What servers answer that know no parts of objects."""
_READ_BYTES: Final = 1 << 20
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_MD5_OF_PARTS: Final = re.compile(r"[0-9a-f]{32}-[0-9]{1,6}")
_NEW_PREFIX: Final = "write models under a new prefix, and name that in spec.model.uri"
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class Bucket:
    """What lies under a prefix of a bucket, or one GGUF file."""

    def __init__(self, uri: str, settings: SourceSettings) -> None:
        """uri: s3://BUCKET/PREFIX or gs://. Raises ModelError for another form."""
        self._uri, self._settings = model_uri.unpinned(uri), settings
        self._scheme, _, path = self._uri.partition("://")
        self._bucket, _, prefix = path.partition("/")
        self._prefix = prefix.strip("/")
        if not self._bucket:
            raise ModelError(f"model {uri} is not of the form {self._scheme}://BUCKET/PREFIX")
        self._client = self._connected()

    def model(self) -> RemoteModel:
        """The objects that serving needs, as they are now. Raises BrokenTransferError, ModelUnavailableError."""
        entries = [entry for entry in self._entries() if self._is_taken(self._name(entry["Key"]))]
        checked_names(self._uri, [self._name(entry["Key"]) for entry in entries])
        listed = "\n".join(f"{self._name(e['Key'])} {e['Size']} {e['ETag']}" for e in entries)
        files = tuple(self._file(entry["Key"], entry["Size"], entry["ETag"]) for entry in entries)
        return RemoteModel(uri=self._uri, version=hashlib.sha256(listed.encode()).hexdigest(), files=files)

    def _connected(self) -> Any:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config

        given = self._settings
        key_id, secret, token = map(given.value, _KEYS)
        session = boto3.Session(
            aws_access_key_id=key_id or None,
            aws_secret_access_key=secret or None,
            aws_session_token=token or None,
            region_name=given.value("AWS_REGION") or ("auto" if self._scheme == "gs" else None),
        )
        endpoint = given.url("endpoint") or (_GCS_ENDPOINT if self._scheme == "gs" else "")
        region = session.region_name or "us-east-1"
        asked = endpoint or f"https://{self._bucket}.s3.{region}.amazonaws.com"
        proxy = given.proxy(asked) if given.url("proxy") else ""  # botocore reads the variables itself
        options: dict[str, Any] = {"proxies": {"http": proxy, "https": proxy}} if proxy else {}
        if session.get_credentials() is None:
            options["signature_version"] = UNSIGNED  # of a public bucket
        config = Config(
            connect_timeout=20,
            read_timeout=60,
            retries={"mode": "standard", "max_attempts": 3},
            max_pool_connections=8,
            request_checksum_calculation="when_required",  # others than AWS do not all know these
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint else "auto"},
            **options,
        )
        trusted = given.file("ca.crt")
        return session.client(
            "s3",
            endpoint_url=endpoint or None,
            region_name=region,
            verify=str(trusted) if trusted else None,
            config=config,
        )

    def _entries(self) -> Sequence[dict[str, Any]]:
        """Key, Size and ETag of the objects under the prefix."""
        below = f"{self._prefix}/" if self._prefix else ""
        if self._prefix.lower().endswith(gguf.SUFFIX):
            below = self._prefix.rpartition("/")[0] + "/" * ("/" in self._prefix)
        found: list[dict[str, Any]] = []
        with self._errors():
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=below):
                found += page.get("Contents", ())
                if len(found) > _MOST_OBJECTS:
                    raise ModelUnavailableError(
                        f"there are more than {_MOST_OBJECTS:,} objects under {self._uri}; name the folder of one model"
                    )
        return [entry for entry in found if not entry["Key"].endswith("/")]

    def _is_taken(self, name: str) -> bool:
        if self._prefix.lower().endswith(gguf.SUFFIX):
            return name in gguf.parts(self._prefix.rpartition("/")[2])
        return is_needed(name) or ("/" not in name and name.lower().endswith(gguf.SUFFIX))

    def _name(self, key: str) -> str:
        """A key as a path below the model's folder."""
        if self._prefix.lower().endswith(gguf.SUFFIX):
            return key.removeprefix(self._prefix.rpartition("/")[0]).lstrip("/")
        return key.removeprefix(self._prefix).removeprefix("/") if self._prefix else key

    def _file(self, key: str, size: int, etag: str) -> RemoteFile:
        opened, checksum = partial(self._opened, key, etag), partial(self._checksum, key, etag)
        return RemoteFile(name=self._name(key), size=size, opened=opened, checksum=checksum)

    @contextlib.contextmanager
    def _opened(self, key: str, etag: str, offset: int) -> Iterator[Transfer]:
        part = {"Range": f"bytes={offset}-"} if offset else {}
        with self._errors():
            body = self._client.get_object(Bucket=self._bucket, Key=key, IfMatch=etag, **part)["Body"]
        with contextlib.closing(body):
            yield Transfer(start=offset, pieces=self._pieces(body))

    def _pieces(self, body: Any) -> Iterator[bytes]:
        with self._errors():
            yield from body.iter_chunks(_READ_BYTES)

    def _checksum(self, key: str, etag: str) -> Checksum | None:
        """SHA-256 where it was stored with the object, else what the ETag says: MD5, or MD5 over those of parts. An
        object that is encrypted with a key of the customer's has neither, nor has one whose ETag the server made of
        something else, or of whose parts it does not give the size."""
        with self._errors():
            found = self._client.head_object(Bucket=self._bucket, Key=key, IfMatch=etag, ChecksumMode="ENABLED")
            stored, value = found.get("ChecksumSHA256", ""), etag.strip('"')
            if stored and "-" not in stored:
                return Checksum(algorithm="sha256", value=base64.b64decode(stored).hex())
            if found.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in found:
                return None
            if _MD5.fullmatch(value):
                return Checksum(algorithm="md5", value=value)
            size = self._part_bytes(key) if _MD5_OF_PARTS.fullmatch(value) else 0
        digest, _, parts = value.partition("-")
        stated = size and -(-int(found["ContentLength"]) // size) == int(parts)
        return Checksum(algorithm="md5", value=digest, part_bytes=size) if stated else None

    def _part_bytes(self, key: str) -> int:
        """Of all parts of an object but the last, 0 where the server knows no parts."""
        from botocore.exceptions import ClientError

        try:
            return int(self._client.head_object(Bucket=self._bucket, Key=key, PartNumber=1)["ContentLength"])
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) in _NO_PARTS:
                return 0
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """What the client raises, as a sentence or as something to try again."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            yield
        except ClientError as error:
            raise self._refused(error) from error
        except NoCredentialsError as error:
            raise ModelUnavailableError(f"model {self._uri} needs credentials; {self._keys()}") from error
        except (BotoCoreError, OSError) as error:
            raise BrokenTransferError(reason(error)) from error

    def _refused(self, error: Any) -> Exception:
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(error.response.get("Error", {}).get("Code", status))
        if status in (401, 403):
            why = f"the bucket refuses access ({code}): {self._keys()}, and let them list and read it"
            return ModelUnavailableError(f"model {self._uri} is not given: {why}")
        if code == "NoSuchBucket" or (status == 404 and error.operation_name == "ListObjectsV2"):
            endpoint = self._settings.named("endpoint", "AWS_ENDPOINT_URL")
            return ModelUnavailableError(
                f"there is no bucket {self._bucket} for model {self._uri} ({code}); check its name, and the S3 API that"
                f" is asked ({endpoint})"
            )
        if status == 404:
            return ModelUnavailableError(f"model {self._uri} lacks an object that was listed; {_NEW_PREFIX}")
        if status == 412:
            return ModelUnavailableError(f"model {self._uri} has changed while it was fetched; {_NEW_PREFIX}")
        if status == 416:
            return BrokenTransferError("it is shorter than the bucket's list states", _NEW_PREFIX)
        return BrokenTransferError(f"the bucket answers {status} {code}")

    def _keys(self) -> str:
        if self._settings.of_pod:
            return f"put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (of gs:// its HMAC keys) into {SECRET}"
        return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (of gs:// its HMAC keys)"
