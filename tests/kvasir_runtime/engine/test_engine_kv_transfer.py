"""Two real engines with files of their own: what one fetches of the other gives the answers that computing gives."""

import random
import threading

import pytest
import torch

from fakes import checkpoints
from fakes.checkpoints import Shape
from fakes.serving import request
from fakes.soak import BLOCK_SIZE, SoakEngine
from kvasir_api.state import RuntimeState

VOCAB = 320
PROMPT = random.Random(7).choices(range(3, VOCAB), k=163)
BLOCKS = len(PROMPT) // BLOCK_SIZE
SHAPES = {
    "llama": Shape(),
    "gemma-window": Shape(family="gemma3_text", std=0.2),
    "deepseek-latent": Shape(family="deepseek_v2", std=0.2),
    "qwen3-next-state": Shape(family="qwen3_next", num_layers=4, std=0.2),
}
SEEDED = {"temperature": 1.0, "top_k": 50, "seed": 11}


def engine(model, folder, **options):
    torch.set_num_threads(1)
    return SoakEngine(model, folder, num_blocks=400, max_sequences=4, host_bytes=64 << 20, **options)


def exchanging(model, folder):
    """Steps take no time by its clock, so that blocks are always fetched."""
    return engine(model, folder, exchanges=True)


def address(of):
    return f"127.0.0.1:{of.transfers.port}"


def close(*engines):
    for one in engines:
        one.transfers.close()


@pytest.mark.parametrize(
    ("name", "sampling"),
    [("llama", {}), ("llama", SEEDED), ("gemma-window", SEEDED), ("deepseek-latent", {})],
)
def test_a_fetched_prefix_gives_the_answer_that_computing_gives(tmp_path, name, sampling):
    model = checkpoints.write(tmp_path / "model", SHAPES[name])
    holder, other = exchanging(model, tmp_path / "a"), exchanging(model, tmp_path / "b")
    want = holder.answer("a", PROMPT, **sampling)
    assert other.answer("b", PROMPT, kv_peer=address(holder), **sampling) == want
    assert other.cached["b"] >= (BLOCKS - 1) * BLOCK_SIZE
    assert other.state.kv_host.fetched_tokens > 0
    assert (other.state.kv_host.failed_fetches, other.state.kv.pinned_tokens) == (0, 0)
    assert holder.scheduler.pool.num_pinned == 0
    # A follow-up finds the same blocks without its peer.
    other.answer("c", [*PROMPT, 5, 6, 7])
    assert other.cached["c"] >= (BLOCKS - 1) * BLOCK_SIZE
    close(holder, other)


def test_a_model_with_a_state_fetches_nothing_and_computes(tmp_path):
    """Only some ends of a prompt have a state, and which ones a peer has is not known."""
    model = checkpoints.write(tmp_path / "model", SHAPES["qwen3-next-state"])
    holder, other = exchanging(model, tmp_path / "a"), exchanging(model, tmp_path / "b")
    want = holder.answer("a", PROMPT, **SEEDED)
    assert other.answer("b", PROMPT, kv_peer=address(holder), **SEEDED) == want
    kv_host = other.state.kv_host
    assert (other.cached["b"], kv_host.fetched_tokens, kv_host.failed_fetches) == (0, 0, 0)
    close(holder, other)


def test_a_prefix_of_one_tenant_is_not_fetched_for_another(tmp_path):
    model = checkpoints.write(tmp_path / "model", Shape())
    holder, other = exchanging(model, tmp_path / "a"), exchanging(model, tmp_path / "b")
    want = holder.answer("a", PROMPT, salt=b"tenant-a")
    assert other.answer("b", PROMPT, kv_peer=address(holder), salt=b"tenant-b") == want
    assert (other.cached["b"], other.state.kv_host.fetched_tokens) == (0, 0)
    assert other.answer("c", PROMPT, kv_peer=address(holder), salt=b"tenant-a") == want
    assert other.cached["c"] >= (BLOCKS - 1) * BLOCK_SIZE
    close(holder, other)


def test_a_peer_that_is_silent_and_ends_costs_that_time_and_then_rests(tmp_path):
    model = checkpoints.write(tmp_path / "model", Shape())
    holder, other = exchanging(model, tmp_path / "a"), exchanging(model, tmp_path / "b")
    want = holder.answer("a", PROMPT)
    over, asked = threading.Event(), threading.Event()

    def silent(link, query, keys):
        asked.set()
        over.wait(0.5)
        link.end()

    holder.transfers._server._answer = silent
    assert other.answer("b", PROMPT, kv_peer=address(holder)) == want
    assert asked.is_set()
    assert (other.cached["b"], other.state.kv_host.failed_fetches) == (0, 1)
    later = [VOCAB - 1, *PROMPT]
    assert other.answer("c", later, kv_peer=address(holder))
    assert other.state.kv_host.failed_fetches == 1  # it was not asked again
    close(holder, other)


def test_blocks_that_a_peer_gives_are_loaded_beside_other_requests(tmp_path):
    """Others go on while a request waits for what it fetches."""
    model = checkpoints.write(tmp_path / "model", Shape())
    holder, other, alone = exchanging(model, tmp_path / "a"), exchanging(model, tmp_path / "b"), engine(model, tmp_path)
    chance, wants = random.Random(3), {}
    for number in range(6):
        prompt = [*PROMPT[: 40 + 20 * number], *chance.choices(range(3, VOCAB), k=30)]
        holder.answer(f"h{number}", prompt)
        wants[f"r{number}"] = (prompt, alone.answer(f"r{number}", prompt))
    for number, (name, (prompt, _)) in enumerate(wants.items()):
        peer = address(holder) if number % 2 else ""
        other.submit(request(name, prompt, max_tokens=20, ignore_eos=True, kv_peer=peer))
    while other.step():
        pass
    assert {name: other.answers[name] for name in wants} == {name: want for name, (_, want) in wants.items()}
    assert other.scheduler.report(RuntimeState()).kv.pinned_tokens == 0
    assert other.state.kv_host.fetched_tokens > 0
    close(holder, other)
