"""Requests whose heads two servers might read differently, and the status with which a server refuses each."""

import json
from typing import Final

COMPLETION: Final = {"model": "tiny", "prompt": "hello ", "max_tokens": 2}
BODY = json.dumps(COMPLETION).encode()
LENGTH = b"content-length: " + str(len(BODY)).encode() + b"\r\n"
START = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
HEADS = {
    "content-length-and-transfer-encoding": (START + LENGTH + b"transfer-encoding: chunked\r\n\r\n" + BODY, 400),
    "transfer-encoding-and-content-length": (
        START + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n",
        400,
    ),
    "two-content-lengths": (START + LENGTH + b"content-length: 3\r\n\r\n" + BODY, 400),
    "two-equal-content-lengths": (START + LENGTH + LENGTH + b"\r\n" + BODY, 400),
    "a-list-of-content-lengths": (START + b"content-length: 5, 5\r\n\r\nhello", 400),
    "a-negative-content-length": (START + b"content-length: -1\r\n\r\n", 400),
    "a-content-length-with-a-sign": (START + b"content-length: +5\r\n\r\nhello", 400),
    "a-content-length-of-100-digits": (START + b"content-length: " + b"9" * 100 + b"\r\n\r\n", 400),
    "an-unknown-transfer-encoding": (START + b"transfer-encoding: xchunked\r\n\r\n" + BODY, 400),
    "two-transfer-encodings": (
        START + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a-folded-field": (START + b"x: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "a-space-before-the-colon": (START + b"content-length : 5\r\n\r\nhello", 400),
    "a-field-without-a-colon": (START + b"nothing\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "a-nul-in-a-field": (START + b"x: a\x00b\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "two-hosts": (START + b"host: y\r\n" + LENGTH + b"\r\n" + BODY, 400),
    "a-chunk-size-that-is-none": (START + b"transfer-encoding: chunked\r\n\r\nxyz\r\n", 400),
    "a-chunk-size-of-17-digits": (START + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", 400),
    "a-field-of-a-megabyte": (START + b"x: " + b"a" * (1 << 20) + b"\r\n\r\n", 431),
    "a-target-of-a-megabyte": (b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
    "10k-fields": (START + b"".join(b"x%d: y\r\n" % n for n in range(10_000)) + b"\r\n", 431),
    "another-protocol": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "http-2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a-method-that-is-none": (b"MAKE /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400),
}
