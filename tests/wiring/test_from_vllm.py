"""What the page for those who come from vLLM says, tried on a server: each option, path and field, and the program.

The tables have an entry for each row of the page, so that none is added or changed unseen.
"""

import re
import sys
from typing import Any

import pytest

from fakes import checkpoints
from fakes.api_process import JSON, api_process
from fakes.from_vllm_page import options, rows, section
from kvasir_api import crd
from kvasir_api.flags import flag
from kvasir_api.options import RuntimeOptions

pytestmark = pytest.mark.xdist_group("from-vllm")
REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
KEY = {**JSON, "authorization": "Bearer secret"}
OPTIONS = {
    "--host": ["127.0.0.1"],
    "--port": ["0"],
    "--ops-port": ["0"],
    "--served-model-name": ["tiny", "--served-model-name", "other"],
    "--api-key": ["secret", "--api-key", "another"],
    "--cors-origin": ["http://localhost:3000"],
    "--dtype": ["bfloat16"],
    "--quantization": ["int8"],
    "--speculation": ["auto"],
    "--suffix-decoding-max-cached-requests": ["8"],
    "--tensor-parallel-size": ["1"],
    "--pipeline-parallel-size": ["1"],
    "--data-parallel-size": ["1"],
    "--max-model-len": ["256"],
    "--memory-fraction": ["0.1"],
    "--kv-cache-dtype": ["int8"],
    "--kv-cache-tokens": ["4096"],
    "--block-size": ["32"],
    "--prefix-cache": [],
    "--kv-host-bytes": ["1048576"],
    "--max-batch-tokens": ["512"],
    "--max-sequences": ["8"],
    "--tool-call-parser": ["hermes"],
    "--reasoning-parser": ["qwen3"],
    "--generation-config": ["none"],
    "--hf-overrides": ['{"max_position_embeddings": 512}'],
    "--chat-template": ["{{ messages[0].content }}"],
    "--model-impl": ["kvasir"],
    "--otlp-traces-endpoint": ["http://127.0.0.1:9/v1/traces"],
    "--pooling": ["mean"],
    "--normalize": ["always"],
    "--device": ["cpu"],
    "--batch-invariant": [],
    "--no-cuda-graphs": [],
    "--root-path": ["/prefix"],
    "--max-waiting": ["16"],
    "--max-body-bytes": ["65536"],
    "--drain-timeout": ["5"],
}
"""Of the page, with a value each."""
ELSEWHERE = {"--revision", "--weights-host-bytes", "--node-key-file", "--enable-expert-parallel"}
"""For models on the hub, CUDA devices, several nodes (test_server_nodes.py) and experts; refused for others."""
MESSAGES = [{"role": "user", "content": "hello"}]
COMPLETION = {"prompt": "hello there", "max_tokens": 2}
PATHS: dict[str, dict[str, Any] | None] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "hello", "max_output_tokens": 16},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 2},
    "/v1/embeddings": {"input": "hello"},
    "/rerank": {"query": "hello", "documents": ["a", "b"]},
    "/score": {"queries": "hello", "documents": ["a", "b"]},
    "/v1/models": None,
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [60, 61]},
    "/tokenizer_info": None,
    "/invocations": COMPLETION,
    "/abort_requests": {"request_ids": ["none"]},
    "/health": None,
    "/ping": None,
    "/version": None,
    "/load": None,
    "/metrics": None,
}
"""The paths of the page and what is sent there; without a body, GET."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(folder):
    with api_process(folder, "--kv-cache-tokens", "16384", "--pooling", "mean", command=REAL) as running:
        yield running


def test_a_server_starts_with_every_option_of_the_page(folder):
    text = section("Starting a server")
    named = {one for _, ours, _ in rows("Starting a server") for one in options(ours)}
    named |= set(options(text.split("What vLLM has no option for")[1])) | {"--ops-port"}
    assert named == {*OPTIONS, *ELSEWHERE}
    of_the_fixture = {"--port", "--ops-port"}
    given = [part for one, values in OPTIONS.items() if one not in of_the_fixture for part in (one, *values)]
    with api_process(folder, *given, command=REAL) as running:
        models = running.ask("/prefix/v1/models", headers=KEY).json["data"]
        assert [one["id"] for one in models] == ["tiny", "other"]
        assert models[0]["max_model_len"] == 256
        assert running.ask("/v1/completions", COMPLETION, headers=KEY).status == 200
        assert running.ask("/v1/completions", COMPLETION).status == 401


def test_options_are_fields_of_a_service_in_camel_case():
    runtime = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "runtime"
    ]["properties"]
    ours = {one for _, cell, _ in rows("Starting a server") for one in options(cell)}
    fields = {field.alias for name, field in RuntimeOptions.model_fields.items() if flag(name).split("/")[0] in ours}
    assert len(fields) > 12
    assert fields <= runtime.keys()


def test_every_path_answers(server):
    listed = section("Paths").split("Not here:")[0]
    assert set(re.findall(r"`(/[a-z0-9_/]+)`", listed)) == {*PATHS}
    answers = {path: server.ask(path, body) for path, body in PATHS.items()}
    assert {path: answer.body[:200] for path, answer in answers.items() if answer.status != 200} == {}
    assert b"vllm:num_requests_running" in answers["/metrics"].body
    assert server.ask("/api/tags").status == 200


def test_what_is_not_here_is_not_found(server):
    absent = re.findall(r"`(/[a-z0-9_/]+)", section("Paths").split("Not here:")[1])
    assert len(absent) > 4
    assert {path: server.ask(path, {}).status for path in absent} == dict.fromkeys(absent, 404)


CHAT = {"messages": MESSAGES, "max_tokens": 2}
TAKEN = [
    ("use_beam_search", COMPLETION, {"use_beam_search": True, "n": 2, "temperature": 0, "early_stopping": True}),
    ("use_beam_search", COMPLETION, {"use_beam_search": True, "best_of": 3, "length_penalty": 0, "temperature": 1}),
    ("use_beam_search", CHAT, {"use_beam_search": True, "n": 2, "response_format": {"type": "json_object"}}),
    ("best_of", COMPLETION, {"best_of": 3}),
    ("n", COMPLETION, {"n": 128, "seed": 3}),
    ("temperature", COMPLETION, {"temperature": 0.001}),
    ("logprobs", COMPLETION, {"logprobs": 20, "prompt_logprobs": -1}),
    ("top_logprobs", CHAT, {"logprobs": True, "top_logprobs": -1}),
    ("stream_options", COMPLETION, {"stream_options": {"include_usage": True}}),
    ("stop", COMPLETION, {"stop": ["x" * 512] * 16}),
    ("priority", COMPLETION, {"priority": -100}),
    ("priority", CHAT, {"priority": 100}),
    ("thinking_token_budget", CHAT, {"thinking_token_budget": -1}),
    ("documents", CHAT, {"documents": None, "chat_template": None}),
    ("suffix", COMPLETION, {"suffix": None, "prompt_embeds": None}),
    ("logprob_token_ids", COMPLETION, {"logprobs": 1, "logprob_token_ids": [*range(256)] * 4}),
    ("repetition_detection", CHAT, {"watermarking": False, "routed_experts_prompt_start": 0, "logits_processors": []}),
    ("vllm_xargs", COMPLETION, {"vllm_xargs": {}, "kv_transfer_params": {}, "ec_transfer_params": {}}),
    ("return_prompt_text", CHAT, {"return_prompt_text": False}),
    ("session_id", CHAT, {"session_id": "a", "return_token_offsets": True, "return_mm_kwargs": True}),
    ("guided_json", COMPLETION, {"guided_json": {"type": "object"}}),
    ("guided_json", COMPLETION, {"guided_regex": "a+"}),
    ("guided_json", CHAT, {"guided_choice": ["a", "b"]}),
    ("guided_json", CHAT, {"guided_grammar": 'start: "a"'}),
    ("guided_json", COMPLETION, {"structured_outputs": {"regex": "[ab]"}}),
]
"""A field that names a row of the page, and what is taken there without a note."""
NAMED = [
    ("reasoning_effort", CHAT, {"reasoning_effort": "high"}),
    ("stream_interval", COMPLETION, {"stream_interval": 4, "spaces_between_special_tokens": False}),
    ("stream_interval", CHAT, {"media_io_kwargs": {"video": {}}, "mm_processor_kwargs": {"a": 1}}),
]
"""What is left out and named."""
REFUSED = [
    ("use_beam_search", COMPLETION, {"temperature": 0.5, "use_beam_search": True}),
    ("best_of", COMPLETION, {"best_of": 2, "stream": True}),
    ("n", COMPLETION, {"n": 129}),
    ("logprobs", COMPLETION, {"logprobs": 21}),
    ("stop", COMPLETION, {"stop": ["x"] * 17}),
    ("stop", COMPLETION, {"stop": "x" * 513}),
    ("priority", CHAT, {"priority": 101}),
    ("thinking_token_budget", CHAT, {"thinking_token_budget": 5}),
    ("documents", CHAT, {"documents": [{"text": "a"}]}),
    ("documents", CHAT, {"chat_template": "x"}),
    ("suffix", COMPLETION, {"suffix": "x"}),
    ("suffix", COMPLETION, {"prompt_embeds": "x"}),
    ("logprob_token_ids", COMPLETION, {"logprob_token_ids": [1] * 1025}),
    ("repetition_detection", COMPLETION, {"repetition_detection": {}}),
    ("repetition_detection", COMPLETION, {"logits_processors": ["x"]}),
    ("vllm_xargs", COMPLETION, {"vllm_xargs": {"a": 1}}),
    ("return_prompt_text", CHAT, {"return_prompt_text": True}),
]
"""What is refused by the name of the first field."""
TRIED_ALONE = {"seed", "truncate_prompt_tokens"}


def asked(server, least, fields):
    return server.ask("/v1/completions" if "prompt" in least else "/v1/chat/completions", {**least, **fields})


def test_every_row_about_fields_is_tried():
    named = {re.findall(r"`([a-z_]+)`", field)[0] for field, _ in rows("Fields of requests")}
    assert {row for row, *_ in [*TAKEN, *NAMED, *REFUSED]} | TRIED_ALONE == named | {"top_logprobs"}


@pytest.mark.parametrize(("row", "least", "fields"), TAKEN)
def test_what_works_is_taken_without_a_note(server, row, least, fields):
    answer = asked(server, least, fields)
    assert answer.status == 200, answer.body
    assert "x-kvasir-ignored-fields" not in answer.headers


@pytest.mark.parametrize(("row", "least", "fields"), NAMED)
def test_what_has_no_effect_is_named(server, row, least, fields):
    answer = asked(server, least, fields)
    assert answer.status == 200
    assert set(answer.headers["x-kvasir-ignored-fields"].split(", ")) == {*fields}


@pytest.mark.parametrize(("row", "least", "fields"), REFUSED)
def test_what_does_not_work_is_refused_by_name(server, row, least, fields):
    answer = asked(server, least, fields)
    assert (answer.status, answer.error["param"]) == (400, next(iter(fields)))


def test_a_seed_repeats_an_answer(server):
    texts = [asked(server, COMPLETION, {"seed": 7, "n": 2, "max_tokens": 8}).json["choices"] for _ in range(2)]
    assert [one["text"] for one in texts[0]] == [one["text"] for one in texts[1]]


@pytest.mark.parametrize(("fields", "kept"), [({}, slice(-3, None)), ({"truncation_side": "right"}, slice(0, 3))])
def test_a_prompt_is_cut_on_the_left_unless_said(server, fields, kept):
    ids = [60, 61, 62, 63, 64]
    cut = {"prompt": ids, "truncate_prompt_tokens": 3, "return_token_ids": True, **fields}
    assert asked(server, COMPLETION, cut).json["choices"][0]["prompt_token_ids"] == ids[kept]


def test_a_request_that_cannot_fit_is_refused_with_both_numbers(server):
    length = server.ask("/v1/models").json["data"][0]["max_model_len"]
    refused = asked(server, COMPLETION, {"prompt": [60] * (length + 1)})
    assert refused.status == 400
    assert str(length) in refused.error["message"]
    assert str(length + 1) in refused.error["message"]


def test_the_program_runs(folder, capsys):
    program = re.search(r"```python\n(.*?)```", section("Python"), re.DOTALL)[1].replace("Qwen/Qwen3-0.6B", str(folder))
    found: dict[str, Any] = {}
    exec(program, found)
    (output,) = found["outputs"]
    assert (output.prompt, len(output.prompt_token_ids) > 0, output.prompt_logprobs) == ("Hello", True, None)
    text = section("Python").split("whose members have")[1].split("Prompts may be")[0]
    members = re.findall(r"`(\w+)`", text)
    assert len(members) == 5
    for one in output.outputs:
        assert all(getattr(one, name) is not None for name in members)
    assert len(found["likely"]) == 1
