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


PHASES = {
    "request_headers": 2,
    "response_headers": 3,
    "request_body": 4,
    "response_body": 5,
    "request_trailers": 6,
    "response_trailers": 7,
}
REPLIES = {
    "request_headers": 1,
    "response_headers": 2,
    "request_body": 3,
    "response_body": 4,
    "request_trailers": 5,
    "response_trailers": 6,
}


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("ext_proc_pb2.ProcessingRequest", {**PHASES, "metadata_context": 8, "protocol_config": 11}),
        (
            "ext_proc_pb2.ProcessingResponse",
            {**REPLIES, "immediate_response": 7, "dynamic_metadata": 8, "override_message_timeout": 10},
        ),
        ("ext_proc_pb2.CommonResponse", {"header_mutation": 2, "body_mutation": 3, "clear_route_cache": 5}),
        ("ext_proc_pb2.BodyMutation", {"body": 1, "clear_body": 2, "streamed_response": 3}),
        ("ext_proc_pb2.StreamedBodyResponse", {"body": 1, "end_of_stream": 2}),
        ("ext_proc_pb2.ProtocolConfiguration", {"request_body_mode": 1, "response_body_mode": 2}),
        ("ext_proc_pb2.Metadata", {"filter_metadata": 1}),
        (
            "discovery_pb2.DeltaDiscoveryRequest",
            {"type_url": 2, "initial_resource_versions": 5, "response_nonce": 6, "error_detail": 7},
        ),
        (
            "discovery_pb2.DeltaDiscoveryResponse",
            {"resources": 2, "type_url": 4, "nonce": 5, "removed_resources": 6},
        ),
        ("discovery_pb2.Resource", {"version": 1, "resource": 2, "name": 3}),
        ("access_log_pb2.AccessLogCommon", {"response_flags": 16, "upstream_remote_address": 13}),
        (
            "access_log_pb2.ResponseFlags",
            {
                "upstream_request_timeout": 3,
                "local_reset": 4,
                "upstream_remote_reset": 5,
                "upstream_connection_termination": 7,
                "downstream_connection_termination": 15,
                "stream_idle_timeout": 17,
                "upstream_max_stream_duration_reached": 20,
                "duration_timeout": 23,
                "upstream_protocol_error": 24,
                "downstream_remote_reset": 28,
            },
        ),
        ("access_log_pb2.Address", {"socket_address": 1}),
        ("access_log_pb2.SocketAddress", {"address": 2, "port_value": 3}),
    ],
)
def test_fields_have_the_numbers_of_envoy(message, fields):
    from kvasir_gateway.proto import access_log_pb2, discovery_pb2, ext_proc_pb2

    modules = {"access_log_pb2": access_log_pb2, "discovery_pb2": discovery_pb2, "ext_proc_pb2": ext_proc_pb2}
    module, _, name = message.partition(".")
    found = getattr(modules[module], name).DESCRIPTOR
    assert {field.name: field.number for field in found.fields} == fields
