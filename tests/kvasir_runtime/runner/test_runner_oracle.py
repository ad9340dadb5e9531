"""Greedy answers and logits equal those of transformers for every family, however the work is cut into steps."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.oracle import oracle_of
from kvasir_runtime.core.plan import BlockCopy, Chunk, Join, StepPlan
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import SamplingConfig

VOCAB = 320
WINDOW = {"sliding_window": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
DEEPSEEK_YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 128, "mscale": 0.707}
DEEPSEEK_YARN |= {"beta_fast": 32, "beta_slow": 1, "mscale_all_dim": 0.707}
MODELS = {
    "llama": Shape(),
    "llama-tied-one-head": Shape(tied=True, num_kv_heads=1, seed=1),
    "llama-biased-scaled": Shape(
        extra={"attention_bias": True, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}}, seed=2
    ),
    "mistral": Shape(family="mistral", seed=3),
    "mistral-window": Shape(family="mistral", extra=WINDOW, seed=4),
    "qwen2": Shape(family="qwen2", tied=True, seed=5),
    "qwen2-window": Shape(family="qwen2", extra={"use_sliding_window": True, "max_window_layers": 1} | WINDOW, seed=6),
    "qwen3": Shape(family="qwen3", head_dim=24, seed=7),
    "gemma2": Shape(family="gemma2", tied=True, head_dim=24, seed=8),
    "gemma3": Shape(family="gemma3_text", tied=True, head_dim=24, num_layers=4, seed=9),
    "mixtral": Shape(family="mixtral", seed=8),
    "qwen2-moe": Shape(family="qwen2_moe", seed=9, tied=True),
    "qwen3-moe": Shape(
        family="qwen3_moe", head_dim=24, num_experts=16, top_k=4, extra={"mlp_only_layers": [1]}, seed=10
    ),
    "deepseek-v2": Shape(family="deepseek_v2", std=0.2, seed=12),
    "deepseek-v2-latent-queries": Shape(
        family="deepseek_v2", extra={"q_lora_rank": 20, "rope_scaling": DEEPSEEK_YARN}, seed=13
    ),
    "qwen3-next": Shape(family="qwen3_next", num_layers=4, std=0.2, seed=11),
}
ROPES = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + pair / 8 for pair in range(8)],
        "long_factor": [2.0 + pair for pair in range(8)],
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}
ALL = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, MODELS[name], num_shards=2)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 10_007 + length).choices(range(3, VOCAB), k=length))


def check(root: Path, name: str, *streams: Stream) -> None:
    for stream in streams:
        assert oracle_of(folder_of(root, name)).wrong_tokens(stream.prompt, stream.answer) == []


@ALL
@pytest.mark.parametrize("chunk", [1 << 30, 7])
def test_logits_of_every_position_equal_the_oracle(root: Path, name: str, chunk: int) -> None:
    check_logits(folder_of(root, name), runner_of(folder_of(root, name)), chunk)


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("beside", [False, True])
def test_sequences_beyond_max_position_embeddings_equal_the_oracle(tmp_path: Path, kind: str, beside: bool) -> None:
    extra = {"rope_scaling": ROPES[kind]} | ({"rope_parameters": {"rope_type": "default"}} if beside else {})
    checkpoints.write(tmp_path, Shape(max_position_embeddings=32, extra=extra, seed=20))
    check_logits(tmp_path, runner_of(tmp_path, longest=61), 7)


def test_overrides_of_the_config_reach_the_angles(tmp_path: Path) -> None:
    stretched = checkpoints.write(tmp_path / "a", Shape(extra={"rope_scaling": ROPES["yarn"]}, seed=20))
    plain = checkpoints.write(tmp_path / "b", Shape(seed=20))
    check_logits(stretched, runner_of(plain, hf_overrides=json.dumps({"rope_scaling": ROPES["yarn"]})), 7)


@pytest.mark.parametrize(
    ("prefix", "head", "other"),
    [
        ("language_model.model.", "language_model.lm_head.weight", "vision_tower."),
        ("model.language_model.", "lm_head.weight", "model.vision_tower."),
    ],
)
def test_the_text_part_of_a_checkpoint_with_images_equals_the_oracle(
    tmp_path: Path, prefix: str, head: str, other: str
) -> None:
    shape = Shape(family="gemma3_text", head_dim=24, num_layers=4, seed=9)
    text, folder = checkpoints.write(tmp_path / "text", shape), checkpoints.write(tmp_path / "images", shape)
    config = checkpoints.config_json(shape)
    del config["architectures"]
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(outer | {"text_config": config}))
    weights = {
        head if name == "lm_head.weight" else name.replace("model.", prefix, 1): tensor
        for name, tensor in checkpoints.random_weights(shape).items()
    }
    checkpoints.write_weights(folder, weights | {other + "patch.weight": torch.zeros(3)})
    check_logits(text, runner_of(folder), 7)


@pytest.mark.parametrize("ops", [CPU, cpu_ops()], ids=["torch", "whole-step"])
def test_heads_that_turn_in_part_equal_phi_3(tmp_path: Path, ops: Ops) -> None:
    """Phi-3 has Llama's layers with merged matrices, and turns a part of each head."""
    shape = Shape(extra={"partial_rotary_factor": 0.5, "attention_bias": False}, seed=24)
    folder = checkpoints.write(tmp_path, shape)
    config = {name: value for name, value in checkpoints.config_json(shape).items() if name != "architectures"}
    oracle = Phi3ForCausalLM(Phi3Config(**config | {"model_type": "phi3", "pad_token_id": 0})).eval()
    weights = checkpoints.random_weights(shape)
    for name in [name for name in weights if name.endswith(("q_proj.weight", "gate_proj.weight"))]:
        parts = ("q", "k", "v") if "q_proj" in name else ("gate", "up")
        first = parts[0]
        merged = [weights.pop(name.replace(f"{first}_proj", f"{part}_proj")) for part in parts]
        weights[name.replace(f"{first}_proj", "qkv_proj" if first == "q" else "gate_up_proj")] = torch.cat(merged)
    oracle.load_state_dict(weights)
    runner = runner_of(folder, ops=ops)
    with torch.inference_mode():
        check_logits(folder, runner, 7, oracle(torch.tensor([prompt(61)]), use_cache=False).logits[0])


def check_logits(folder: Path, runner: ModelRunner, chunk: int, wanted: torch.Tensor | None = None) -> None:
    """Of 61 tokens, computed in chunks, against wanted, or else the oracle's of the checkpoint in folder."""
    tokens = prompt(61)
    sampling = SamplingConfig(max_tokens=1, temperature=0.0)
    groups = len(runner.facts.attentions)
    tables = np.random.default_rng(0).permutation(32 * groups)[: 8 * groups].reshape(groups, 8).tolist()
    join = Join(
        row=1,
        request_id="a",
        tokens=tokens,
        prompt_tokens=61,
        computed_tokens=0,
        tables=tuple(map(tuple, tables)),
        sampling=sampling,
    )
    runner.collect(runner.launch(StepPlan(step=1, joins=(join,))))
    logits = []
    with torch.inference_mode():
        for start in range(0, 61, min(chunk, 61)):
            part = Chunk(row=1, start=start, num_tokens=min(chunk, 61 - start), samples=False)
            batch = replace(runner._rows.model_input([part]).batch, logit_rows=None)
            logits.append(runner._model.logits_of(runner._model.forward(batch, runner._cache)))
    wanted = oracle_of(folder).logits(tokens) if wanted is None else wanted
    torch.testing.assert_close(torch.cat(logits), wanted, atol=1e-4, rtol=0)


@ALL
def test_whole_and_chunked_prompts_give_the_oracles_answer(root: Path, name: str) -> None:
    runner = runner_of(folder_of(root, name))
    for chunk in (1 << 30, 5):
        stream = Stream(prompt=prompt(40))
        Hand(runner).run([stream], 24, chunk=chunk)
        check(root, name, stream)


# Plans by hand share blocks of every column; of a state only the scheduler's do, which test_runner_scheduler.py drives.
@pytest.mark.parametrize("name", sorted({*MODELS} - {"qwen3-next"}))
def test_cached_prefix_gives_the_cold_answer(root: Path, name: str) -> None:
    hand = Hand(runner_of(folder_of(root, name)))
    first = Stream(prompt=prompt(45))
    hand.run([first], 12)
    warm = Stream(prompt=prompt(45)[:40] + prompt(9, seed=1))
    hand.share(warm, first, 5)
    hand.run([warm], 12)
    check(root, name, first, warm)


@ALL
def test_preempted_stream_goes_on_as_if_nothing_happened(root: Path, name: str) -> None:
    hand = Hand(runner_of(folder_of(root, name)))
    stream, other = Stream(prompt=prompt(30)), Stream(prompt=prompt(33))
    hand.run([stream, other], 6)
    hand.preempt(stream)
    hand.run([other], 12)
    hand.run([stream, other], 20, chunk=11)
    check(root, name, stream, other)


@ALL
def test_mixed_batch_gives_each_its_own_answer(root: Path, name: str) -> None:
    hand, chooser = Hand(runner_of(folder_of(root, name), num_blocks=2048)), random.Random(1)
    streams = [Stream(prompt=prompt(length, seed=9)) for length in (1, 2, 7, 8, 9, 16, 31, 64, 100, 250)]
    while live := [stream for stream in streams if len(stream.answer) < 8]:
        moving = chooser.sample(live, k=min(len(live), 6))
        hand.step([(s, min(len(s.tokens) - s.computed, chooser.choice((1, 5, 40)))) for s in moving])
    check(root, name, *streams)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2", "qwen3"])
def test_thirty_two_streams_of_up_to_2000_tokens(root: Path, name: str) -> None:
    hand = Hand(runner_of(folder_of(root, name), num_blocks=4096), scattered=False)
    lengths = [1, 2000, 1500, 700, 333, *range(5, 32)]
    streams = [Stream(prompt=prompt(length, seed=5)) for length in lengths]
    hand.run(streams, 5, chunk=700)
    check(root, name, *streams)


@pytest.mark.parametrize("name", ["mistral-window", "qwen2-window", "gemma2", "gemma3"])
@pytest.mark.parametrize("scattered", [True, False])
def test_prompt_longer_than_the_window(root: Path, name: str, scattered: bool) -> None:
    hand = Hand(runner_of(folder_of(root, name)), scattered=scattered)
    streams = [Stream(prompt=prompt(length)) for length in (23, 24, 25, 90, 200)]
    hand.run(streams, 30, chunk=17)
    check(root, name, *streams)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral-window", "gemma2", "gemma3"])
def test_reference_operations_give_the_same_answers(root: Path, name: str) -> None:
    hand = Hand(runner_of(folder_of(root, name), ops=REFERENCE))
    streams = [Stream(prompt=prompt(length)) for length in (3, 40, 50)]
    hand.run(streams, 8, chunk=9)
    check(root, name, *streams)


def test_copied_blocks_hold_what_the_source_held(root: Path) -> None:
    hand = Hand(runner_of(folder_of(root, "llama")))
    first = Stream(prompt=prompt(24))
    hand.run([first], 4)
    fork = Stream(prompt=prompt(24))
    fork.columns = [hand.column() for _ in range(2)]
    fork.computed = 16
    hand.step([(fork, 8)], copies=[BlockCopy(first.blocks[i], fork.blocks[i]) for i in range(2)])
    hand.run([fork], 4)
    assert fork.answer == first.answer


def test_end_of_text_is_not_drawn_before_min_tokens(root: Path, tmp_path: Path) -> None:
    # Logits are all zero, so that every token ties and the lowest allowed id wins: 0 is the end of text.
    weights = {name: tensor * 0 for name, tensor in checkpoints.random_weights(Shape()).items()}
    folder = checkpoints.write(tmp_path)
    checkpoints.write_weights(folder, weights)
    hand = Hand(runner_of(folder))
    stopping = SamplingConfig(temperature=0.0, max_tokens=9, stop_token_ids=(1,))
    streams = [Stream(prompt=(5, 6)), Stream(prompt=(5, 6), sampling=stopping, min_tokens=3)]
    hand.run(streams, 5)
    assert [stream.answer for stream in streams] == [[0] * 5, [2, 2, 2, 0, 0]]


def test_seeded_draw_is_the_same_alone_in_a_batch_and_after_preemption(root: Path) -> None:
    runner = runner_of(folder_of(root, "llama"))
    hot = SamplingConfig(temperature=0.9, top_p=0.95, seed=42, max_tokens=1)

    def stream() -> Stream:
        return Stream(prompt=prompt(20), sampling=hot)

    alone, together, preempted = stream(), stream(), stream()
    Hand(runner).run([alone], 16)
    others = [Stream(prompt=prompt(n), sampling=SamplingConfig(seed=n, max_tokens=1)) for n in (4, 50, 9)]
    Hand(runner).run([*others, together], 16, chunk=6)
    hand = Hand(runner)
    hand.run([preempted], 7)
    hand.preempt(preempted)
    hand.run([preempted], 16)
    assert alone.answer == together.answer == preempted.answer
    assert len(set(alone.answer)) > 4


def test_plans_are_collected_in_order(root: Path) -> None:
    runner = runner_of(folder_of(root, "llama"))
    first, second = runner.launch(StepPlan(step=1)), runner.launch(StepPlan(step=2))
    with pytest.raises(ValueError, match="step 2 is not the oldest"):
        runner.collect(second)
    assert runner.collect(first).step == 1
    assert runner.collect(second).sampled == ()


def test_two_plans_in_flight_give_the_same_answer(root: Path) -> None:
    runner = runner_of(folder_of(root, "qwen3"))
    tokens = prompt(30)
    join = Join(
        row=0,
        request_id="a",
        tokens=tokens,
        prompt_tokens=30,
        computed_tokens=0,
        tables=(tuple(range(5)),),
        sampling=SamplingConfig(temperature=0.0, max_tokens=9),
    )
    plans = [StepPlan(step=1, joins=(join,), chunks=(Chunk(row=0, start=0, num_tokens=30, samples=True),))]
    plans += [StepPlan(step=2 + i, chunks=(Chunk(row=0, start=30 + i, num_tokens=1, samples=True),)) for i in range(8)]
    answer, flying = [], [runner.launch(plans.pop(0))]
    while flying:
        if plans:
            flying.append(runner.launch(plans.pop(0)))
        answer += runner.collect(flying.pop(0)).sampled[0].tokens
    assert oracle_of(folder_of(root, "qwen3")).wrong_tokens(tokens, answer) == []
