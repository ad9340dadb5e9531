"""What the real server offers beside generation: tokens, load, version, and metrics that a scrape after work shows."""

import http.client
import re
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes import checkpoints
from fakes.api_process import HERE, JSON, ApiProcess, api_process
from kvasir_api import __version__

CHAT = [{"role": "user", "content": "the plan"}]
TOOL = {"type": "function", "function": {"name": "f"}}

pytestmark = pytest.mark.xdist_group("server-surfaces")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = checkpoints.write(tmp_path_factory.mktemp("models") / "endless")
    fake = (sys.executable, str(HERE / "serve_fake.py"))
    with api_process(model, "--api-key", "k", "--served-model-name", "tiny", command=fake) as running:
        yield running


def ask(server, path, body=None, **headers):
    return server.ask(path, body, headers={**JSON, "authorization": "Bearer k", **headers})


def samples(server: ApiProcess, name: str) -> dict[tuple[str, ...], float]:
    """Values of one series by its labels' values but the model's and the engine's."""
    text = server.ask("/metrics").body.decode()
    return {
        tuple(v for k, v in sorted(sample.labels.items()) if k not in {"model_name", "engine"}): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_text_becomes_ids_and_text_again(server):
    answer = ask(server, "/tokenize", {"model": "tiny", "prompt": "the plan 🙂", "return_token_strs": True}).json
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) > 2
    assert answer["max_model_len"] == 256
    assert ask(server, "/detokenize", {"tokens": answer["tokens"]}).json == {"prompt": "the plan 🙂"}


def test_a_chat_is_counted_as_it_will_be_prompted(server):
    counted = ask(server, "/tokenize", {"messages": CHAT}).json
    assert counted["token_strs"] is None
    used = ask(server, "/v1/chat/completions", {"model": "tiny", "messages": CHAT, "max_tokens": 1}).json["usage"]
    assert counted["count"] == used["prompt_tokens"]
    text = ask(server, "/detokenize", {"tokens": counted["tokens"]}).json["prompt"]
    assert text == "<|im_start|>user\nthe plan<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("/tokenize", {}, 400, "invalid_value", None),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "invalid_value", None),
        ("/tokenize", {"prompt": ["a"]}, 400, "invalid_value", "prompt"),
        ("/tokenize", {"messages": CHAT, "tools": [TOOL]}, 400, "unsupported_parameter", "tools"),
        ("/tokenize", {"prompt": "a", "model": "x"}, 404, "model_not_found", "model"),
        ("/tokenize", {"prompt": "a" * 16_000_000}, 400, "invalid_value", "prompt"),
        ("/detokenize", {}, 400, "missing_required_parameter", "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "invalid_value", "tokens[1]"),
        ("/detokenize", {"tokens": [1, 320]}, 400, "invalid_value", "tokens"),
        ("/detokenize", {"tokens": "abc"}, 400, "invalid_value", "tokens"),
    ],
)
def test_wrong_bodies_are_refused_by_name(server, path, body, status, code, param):
    answer = ask(server, path, body)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.error["param"] == (param if code != "unsupported_parameter" else next(iter([*body][1:])))


def test_a_counted_chat_ends_as_it_is_asked_to(server):
    def text(**fields):
        ids = ask(server, "/tokenize", {"messages": CHAT, **fields}).json["tokens"]
        return ask(server, "/detokenize", {"tokens": ids}).json["prompt"]

    assert text(add_generation_prompt=False) == "<|im_start|>user\nthe plan<|im_end|>\n"
    assert text(continue_final_message=True) == "<|im_start|>user\nthe plan"
    both = ask(server, "/tokenize", {"messages": CHAT, "add_generation_prompt": True, "continue_final_message": True})
    assert (both.status, both.error["param"]) == (400, "continue_final_message")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/models"])
def test_clients_need_the_key(server, path):
    assert server.ask(path, {"prompt": "a"} if path != "/v1/models" else None).status == 401


def test_small_questions_need_no_key(server):
    assert server.ask("/version").json == {"version": __version__}
    assert server.ask("/ping").status == server.ask("/ping", b"").status == 200
    assert server.ask("/load").json == {"server_load": 0, "running": 0, "waiting": 0}


def test_an_answer_carries_the_load_where_asked(server):
    body = {"model": "tiny", "prompt": "the", "max_tokens": 2}
    header = "endpoint-load-metrics"
    plain = ask(server, "/v1/completions", body)
    assert header not in plain.headers
    text = ask(server, "/v1/completions", body, **{f"{header}-format": "text"}).headers[header]
    assert re.fullmatch(r"TEXT named_metrics\.kv_cache_usage_perc=[\d.]+, named_metrics\.num_requests_w.*", text)
    json_form = ask(server, "/v1/completions", {**body, "stream": True}, **{f"{header}-format": "JSON"}).headers[header]
    assert re.fullmatch(r'JSON \{"named_metrics": \{"kv_cache_usage_perc": [\d.]+, .*\}\}', json_form)
    assert header not in ask(server, "/v1/completions", body, **{f"{header}-format": "xml"}).headers


def test_work_shows_in_the_aliases(server):
    names = {
        "vllm:request_queue_time_seconds_count": 3,
        "vllm:request_prefill_time_seconds_count": 3,
        "vllm:request_generation_tokens_sum": 12,
        "vllm:request_params_n_sum": 3,
        "vllm:request_params_n_count": 1,
        "vllm:request_max_num_generation_tokens_sum": 4,
        "vllm:request_prompt_tokens_sum": 60,
        "vllm:time_to_first_token_seconds_count": 3,
        "vllm:generation_tokens_total": 12,
        "vllm:prompt_tokens_total": 60,
    }
    before = {name: samples(server, name)[()] for name in names}
    steps = samples(server, "vllm:iteration_tokens_total_sum")[()]
    body = {"model": "tiny", "prompt": list(range(20, 40)), "max_tokens": 4, "n": 3, "temperature": 1}
    assert ask(server, "/v1/completions", body).status == 200
    server.until("idle", lambda: server.state()["running"] == 0)
    assert {name: samples(server, name)[()] - was for name, was in before.items()} == names
    computed = samples(server, "vllm:iteration_tokens_total_sum")[()] - steps
    assert 20 + 9 <= computed <= 60 + 9, "prompts, shared or not, and all tokens but the last of each choice"
    assert samples(server, "vllm:request_success_total")[("length",)] >= 3
    assert samples(server, "vllm:cache_config_info")


def test_clients_cannot_add_series(server):
    ask(server, "/version")
    before = server.ask("/metrics").body.count(b"\n")
    for number in range(20):
        ask(server, f"/nothing/{number}")
        ask(server, "/v1/completions", {"model": f"m{number}", "prompt": "x"})
        connection = http.client.HTTPConnection(*server.http, timeout=60)
        connection.request(f"M{number}", "/version")
        assert connection.getresponse().status in {400, 405}
        connection.close()
    assert server.ask("/metrics").body.count(b"\n") - before < 40
    assert ("none", "GET", "4xx") in samples(server, "http_requests_total")
