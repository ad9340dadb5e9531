"""The generated messages are those of the .proto files beside them."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.internal import api_implementation

ROOT = Path(__file__).resolve().parents[2]
PROTO = "kvasir_gateway/proto"


def test_messages_are_fresh(tmp_path):
    sources = sorted(path.name for path in (ROOT / "operator" / PROTO).glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *(f"{PROTO}/{name}" for name in sources)], cwd=ROOT / "operator", check=True)
    for path in (tmp_path / PROTO).iterdir():
        assert path.read_text() == (ROOT / "operator" / PROTO / path.name).read_text(), (
            f"{path.name}: run make generate"
        )


def test_messages_are_backed_by_c():
    assert api_implementation.Type() == "upb"


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("ext_proc_pb2.ProcessingRequest", {"request_headers": 2, "request_body": 4}),
        ("ext_proc_pb2.ProcessingResponse", {"request_headers": 1, "request_body": 3, "immediate_response": 7}),
        ("ext_proc_pb2.CommonResponse", {"header_mutation": 2, "clear_route_cache": 5}),
        ("access_log_pb2.AccessLogCommon", {"response_flags": 16}),
    ],
)
def test_fields_have_the_numbers_of_envoy(message, fields):
    from kvasir_gateway.proto import access_log_pb2, ext_proc_pb2

    module, _, name = message.partition(".")
    found = getattr({"access_log_pb2": access_log_pb2, "ext_proc_pb2": ext_proc_pb2}[module], name).DESCRIPTOR
    assert {field.name: field.number for field in found.fields} == fields
