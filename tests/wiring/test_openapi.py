"""/openapi.json is complete, and what a server answers is what it says: schemathesis is the judge, in a short run.

The long one is `make fuzz-api`. New routes are judged without being named here.
"""

import importlib.util
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.api_process import api_process

FUZZ = Path(__file__).parents[1] / "fuzz" / "api.py"

pytestmark = pytest.mark.xdist_group("openapi")


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz_api", FUZZ)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(tmp_path_factory, fuzz):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")
    with api_process(folder, command=fuzz.SERVE) as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    return server.ask("/openapi.json").json


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def refs(node):
    if isinstance(node, dict):
        yield from ([node["$ref"]] if isinstance(node.get("$ref"), str) else [])
        for item in node.values():
            yield from refs(item)
    elif isinstance(node, list):
        for item in node:
            yield from refs(item)


def test_every_operation_says_what_it_takes_answers_and_refuses(document):
    found = dict(operations(document))
    assert {"POST /v1/completions", "POST /v1/chat/completions", "GET /v1/models", "POST /tokenize"} <= set(found)
    for name, operation in found.items():
        responses = operation["responses"]
        assert "200" in responses, name
        assert "422" not in responses, name
        assert all(response["description"] for response in responses.values()), name
        if name.startswith("POST") and "requestBody" in operation:
            assert {"400", "401", "404", "408", "413", "415", "429", "500", "503"} <= set(responses), name
            assert operation["requestBody"]["content"]["application/json"]["schema"]["properties"], name


def test_every_reference_leads_somewhere(document):
    names = {reference.removeprefix("#/components/schemas/") for reference in refs(document)}
    assert names <= set(document["components"]["schemas"])
    assert len(names) > 10


def test_the_names_of_the_model_are_the_values_of_its_field(document):
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["model"]["anyOf"] == [{"type": "string", "enum": ["tiny"]}, {"type": "null"}]
    assert {"type": "null"} in body["properties"]["temperature"]["anyOf"]
    assert "additionalProperties" not in body, "unknown fields are left out"


def test_a_short_run_finds_nothing(fuzz, server):
    status, said = fuzz.drive(server, examples=6, seed=20, phases="fuzzing")
    assert status == 0, said
    assert fuzz.num_cases(said) >= 6 * fuzz.num_operations(server) / 2
    assert server.ask("/health").status == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/responses", {"input": "x", "tool_choice": {"type": {}}}, "tool_choice"),
        (
            "/v1/responses/input_tokens",
            {
                "input": "x",
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            },
            "tool_choice",
        ),
    ],
)
def test_what_was_found_once_is_refused(server, path, fields, param):
    answer = server.ask(path, {"model": "tiny", **fields})
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("PUT", "/ping", "GET, POST"), ("PATCH", "/v1/completions", "POST"), ("DELETE", "/v1/models/tiny", "GET")],
)
def test_a_wrong_method_is_told_all_right_ones(server, method, path, allow):
    answer = server.ask(path, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    assert answer.error["code"] == "method_not_allowed"
