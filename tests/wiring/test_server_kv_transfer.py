"""Two real servers with tiers of their own: one fetches what the other has computed, and answers alike without it."""

import os
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest

from fakes import checkpoints
from fakes.api_process import JSON, api_process

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
HELD = (sys.executable, str(Path(checkpoints.__file__).with_name("serve_held.py")))
PROMPT = "the operator watches the services and the engine reads a plan and answers with tokens " * 8

pytestmark = pytest.mark.xdist_group("server-kv-transfer")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")


def args(folder, key_file):
    return (
        *("--kv-cache-tokens", "4096", "--device", "cpu", "--served-model-name", "tiny"),
        *("--kv-host-bytes", "20000000", "--kv-host-dir", str(folder), "--kv-transfer-port", "0"),
        *("--continuation-key-file", str(key_file)),
    )


def asked(server, prompt=PROMPT, peer="", status=200, **fields):
    """An answer's text, and how many tokens of its prompt were not computed."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields}
    headers = {**JSON, "x-kvasir-kv-peer": peer} if peer else JSON
    answer = server.ask("/v1/completions", body, headers=headers)
    assert answer.status == status, answer.body
    if status != 200:
        return answer.error
    return answer.json["choices"][0]["text"], answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def peer_of(server, prompt=PROMPT):
    return f"127.0.0.1:{server.state()['kv_transfer_port']};bytes={len(prompt)}"


def test_a_replica_fetches_what_another_has_computed_and_answers_alike(model, tmp_path):
    key, wrong = tmp_path / "key", tmp_path / "wrong"
    key.write_text("a key of thirty-two characters..\n")
    wrong.write_text("another key of many characters..\n")
    with (
        api_process(model, *args(tmp_path / "a", key), command=REAL) as holder,
        api_process(model, *args(tmp_path / "b", key), command=REAL) as other,
    ):
        drawn = {"temperature": 1.0, "seed": 5}
        text, cached = asked(holder)
        seeded, _ = asked(holder, **drawn)
        assert cached == 0
        holder.until("blocks are on the host", lambda: holder.state()["kv_host"]["stored_tokens"] > 200)
        assert b"kvasir_kv_host_fetched_tokens_total" in other.ask("/metrics").body
        again, cached = asked(other, peer=peer_of(holder))
        fetched = other.state()["kv_host"]
        assert again == text
        assert cached > 200
        assert fetched["fetched_tokens"] >= cached
        assert (fetched["failed_fetches"], fetched["fetch_bytes_per_s"] > 0) == (0, True)
        assert asked(other, **drawn)[0] == seeded
        assert asked(other, "x", peer="host:80;bytes=1", status=400)["code"] == "invalid_header"
        assert asked(other, "x", peer="127.0.0.1:80", status=400)["code"] == "invalid_header"
        with api_process(model, *args(tmp_path / "c", wrong), command=REAL) as stranger:
            assert asked(stranger, peer=peer_of(holder)) == (text, 0)
            assert stranger.state()["kv_host"]["failed_fetches"] == 1
            assert "another key" not in stranger.output() + holder.output()
        # A peer that ended costs a connection, and the answer is computed.
        gone = peer_of(holder)
        holder.process.kill()
        holder.process.wait()
        other_prompt = "what follows was never said to one of them before, so that it is computed " * 8
        begun = time.monotonic()
        _, cached = asked(other, other_prompt, peer=gone)
        assert cached == 0
        assert time.monotonic() - begun < 60


def test_a_replica_computes_a_prompt_for_another_which_answers_alike(model, tmp_path):
    key = tmp_path / "key"
    key.write_text("a key of thirty-two characters..\n")
    with (
        api_process(model, *args(tmp_path / "a", key), command=REAL) as prefill,
        api_process(model, *args(tmp_path / "b", key), command=REAL) as decode,
    ):
        address = f"127.0.0.1:{prefill.state()['kv_transfer_port']};prefill"
        assert prefill.state()["kv_prefill"] is True
        text, cached = asked(decode, peer=address)
        assert cached > 200
        assert (decode.state()["kv_host"]["handed_over_prompts"], prefill.state()["kv_host"]["peer_prompts"]) == (1, 1)
        assert decode.state()["kv_host"]["failed_fetches"] == 0
        assert b"kvasir_kv_handed_over_prompts_total" in decode.ask("/metrics").body
        assert prefill.state()["totals"]["completions"] == 1
        assert asked(prefill)[0] == text, "as one replica alone"
        # A replica that stands still is left after a moment.
        os.kill(prefill.engine_pid, signal.SIGSTOP)
        still = "what follows was never said to one of them before, so that it is computed " * 8
        try:
            assert asked(decode, still, peer=address)[1] == 0
            assert decode.state()["kv_host"]["failed_fetches"] == 1
        finally:
            os.kill(prefill.engine_pid, signal.SIGCONT)
        assert "Traceback" not in prefill.output() + decode.output()


def test_a_replica_that_starts_fetches_what_its_peer_is_asked_most(model, tmp_path):
    key = tmp_path / "key"
    key.write_text("a key of thirty-two characters..\n")
    os.mkfifo(pipe := tmp_path / "held")
    held = {"command": HELD, "env": {"KVASIR_HELD": str(pipe)}, "wait": "listening"}
    more = ("--prefix-warmup-seconds", "600")
    with (
        api_process(model, *args(tmp_path / "a", key), command=REAL) as first,
        api_process(model, *args(tmp_path / "b", key), *more, **held) as second,
    ):
        for number in range(3):
            asked(first, f"{PROMPT}question {number}")
        first.until("blocks are on the host", lambda: first.state()["kv_host"]["stored_tokens"] > 200)
        peers = urlencode({"address": f"http://{first.ops[0]}:{first.ops[1]}"})
        assert second.ask(f"/peers?{peers}", ops=True, method="POST").json == {"peers": 1}
        pipe.write_bytes(b"")
        second.wait_ready()
        assert second.state()["kv_host"]["fetched_tokens"] > 200
        assert asked(second, f"{PROMPT}a new question")[1] > 200


def test_a_replica_that_stays_fetches_what_one_that_drains_is_asked_most_and_computes_none_of_it(model, tmp_path):
    key = tmp_path / "key"
    key.write_text("a key of thirty-two characters..\n")
    with (
        api_process(model, *args(tmp_path / "a", key), command=REAL) as leaving,
        api_process(model, *args(tmp_path / "b", key), command=REAL) as staying,
    ):
        for number in range(3):
            asked(leaving, f"{PROMPT}question {number}")
        leaving.until("blocks are on the host", lambda: leaving.state()["kv_host"]["stored_tokens"] > 200)
        assert leaving.ask("/drain", ops=True, method="POST").json["phase"] == "draining"
        computed = staying.state()["totals"]["prompt_tokens"]
        named = urlencode({"address": f"http://{leaving.ops[0]}:{leaving.ops[1]}"})
        answer = staying.ask(f"/prefetch?{named}", ops=True, method="POST")
        assert answer.status == 202, answer.body
        staying.until("blocks came", lambda: staying.state()["kv_host"]["prefetched_tokens"] > 200)
        staying.until("it is over", lambda: "which leaves, in" in staying.output())
        assert (staying.state()["totals"]["prompt_tokens"], staying.state()["running"]) == (computed, 0)
        assert b"kvasir_kv_host_prefetched_tokens_total" in staying.ask("/metrics").body
        # A second time nothing is left to fetch, nor is anything there of a replica that has ended.
        before = staying.state()["kv_host"]["fetched_tokens"]
        assert staying.ask(f"/prefetch?{named}", ops=True, method="POST").status == 202
        leaving.signal(signal.SIGTERM)
        assert leaving.wait() == 0
        text, cached = asked(staying, f"{PROMPT}a new question")
        assert cached > 200
        assert staying.state()["kv_host"]["fetched_tokens"] == before
        assert staying.ask("/reset_prefix_cache", ops=True, method="POST").status == 200
        assert asked(staying, f"{PROMPT}a new question") == (text, 0), "as computed"
        staying.until("the other one is over", lambda: staying.output().count("which leaves, in") == 2)
        assert staying.ask("/prefetch?address=http://a.example:1", ops=True, method="POST").status == 422
        assert "Traceback" not in staying.output() + leaving.output()
