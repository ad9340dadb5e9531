"""From options to a runner: sizes, progress, dtype, and one line for everything that cannot work."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import checkpoints, encoder_checkpoints
from fakes.checkpoints import Shape
from kvasir_api.options import KvCacheDtype, ServeOptions
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import CapacityError, DeviceMemoryError, ModelError, NoDeviceError, StartError
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import placement
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.runner.startup.capacity import MeasuredMemory, cache_blocks, fitting_limit
from kvasir_runtime.wire import SamplingConfig

MIB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("tiny"), Shape(dtype=torch.bfloat16, max_position_embeddings=512))


def built(folder: Path, said: list[Progress] | None = None, **options: Any) -> ModelRunner:
    given = ServeOptions(model=str(folder), device="cpu", **options)
    return build(given, said.append if said is not None else lambda progress: None)


def test_facts_follow_options_and_config(folder: Path) -> None:
    facts = built(folder, kv_cache_tokens=1000, block_size=32, dtype="float32", max_sequences=7).facts
    assert (facts.num_blocks, facts.block_size, facts.capacity_tokens) == (32, 32, 1024)
    assert (facts.max_model_len, facts.max_sequences, facts.max_batch_tokens) == (512, 7, 512)
    kernels = cpu_ops().name
    assert (facts.dtype, facts.kernels, facts.vocab_size, facts.eos_token_ids) == ("float32", kernels, 320, (0,))
    assert facts.device.startswith("cpu (1 threads")
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert facts.weights_bytes == 4 * sum(t.numel() for t in checkpoints.random_weights(Shape()).values())


def test_an_8_bit_cache_is_counted_with_its_scales_and_answers(folder: Path) -> None:
    runner = built(folder, kv_cache_tokens=512, dtype="float32", kv_cache_dtype="int8")
    assert runner.facts.kv_bytes_per_token == 2 * 2 * 2 * (16 + 4)
    tokens = (5, 6, 7)
    join = Join(
        row=0,
        request_id="a",
        tokens=tokens,
        prompt_tokens=3,
        computed_tokens=0,
        tables=((0,),),
        sampling=SamplingConfig(temperature=0.0, max_tokens=1),
    )
    plan = StepPlan(step=1, joins=(join,), chunks=(Chunk(row=0, start=0, num_tokens=3, samples=True),))
    wanted = built(folder, kv_cache_tokens=512, dtype="float32")
    (mine,), (theirs,) = (each.collect(each.launch(plan)).sampled for each in (runner, wanted))
    assert mine.tokens == theirs.tokens


@pytest.mark.parametrize(
    ("wanted", "device", "capability", "head_dim", "dtype"),
    [
        ("auto", "cuda", (8, 0), 18, torch.bfloat16),
        ("int8", "cpu", (0, 0), 18, torch.int8),
        ("int8", "cuda", (8, 0), 128, torch.int8),
        ("int8", "cuda", (9, 0), 18, "kv_cache_dtype int8 needs heads of a multiple of 4 on CUDA, head_dim is 18"),
        ("int4", "cpu", (0, 0), 18, torch.uint8),
        ("int4", "cuda", (8, 0), 24, torch.uint8),
        ("int4", "cpu", (0, 0), 17, "int4 needs heads of a multiple of 2 on cpu, head_dim is 17; take int8"),
        ("int4", "cuda", (9, 0), 20, "int4 needs heads of a multiple of 8 on cuda, head_dim is 20; take int8"),
        ("fp8", "cuda", (9, 0), 18, torch.float8_e4m3fn),
        ("fp8", "cuda", (8, 0), 128, "fp8 needs a CUDA device of capability 8.9, this is capability 8.0; take int8"),
        ("fp8", "cpu", (0, 0), 128, "fp8 needs a CUDA device of capability 8.9, this is a CPU; take int8"),
    ],
)
def test_type_of_the_cache(
    wanted: KvCacheDtype, device: str, capability: tuple[int, int], head_dim: int, dtype: torch.dtype | str
) -> None:
    def choose() -> torch.dtype:
        sizes = {"head_dim": head_dim, "capability": capability}
        return placement.choose_cache_dtype(wanted, torch.bfloat16, torch.device(device), **sizes)

    if isinstance(dtype, torch.dtype):
        assert choose() == dtype
        return
    with pytest.raises(ModelError, match=dtype):
        choose()


def test_a_cache_of_4_bits_holds_no_compressed_rows(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "latent", Shape(family="deepseek_v2"))
    with pytest.raises(ModelError, match="int4 is for keys and values of heads"):
        built(folder, kv_cache_tokens=512, kv_cache_dtype="int4")


def test_progress_rises_to_ready(folder: Path) -> None:
    said: list[Progress] = []
    built(folder, said, kv_cache_tokens=512)
    loading = [progress.progress_fraction for progress in said if progress.phase == "loading"]
    assert loading == sorted(loading)
    assert loading[-1] == 1.0
    assert said[-1].phase == "warming"


def test_cache_takes_a_share_of_memory_when_no_size_is_given(folder: Path) -> None:
    small, large = (built(folder, memory_percent=percent).facts.num_blocks for percent in (10, 40))
    assert 0 < small < large


def test_bfloat16_checkpoint_runs_in_16_bits(folder: Path) -> None:
    runner = built(folder, dtype="bfloat16", kv_cache_tokens=512)
    join = Join(
        row=0,
        request_id="a",
        tokens=(5, 6, 7),
        prompt_tokens=3,
        computed_tokens=0,
        tables=((0,),),
        sampling=SamplingConfig(max_tokens=1, temperature=0.8, top_p=0.9),
    )
    plan = StepPlan(step=1, joins=(join,), chunks=(Chunk(row=0, start=0, num_tokens=3, samples=True),))
    (sampled,) = runner.collect(runner.launch(plan)).sampled
    assert 0 <= sampled.tokens[0] < 320


def test_a_limit_that_was_not_requested_shrinks_to_the_cache(folder: Path) -> None:
    assert built(folder, kv_cache_tokens=256).facts.max_model_len == 257


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 1000}, "max_model_len 1000 is more than the model's 512 positions"),
        ({"max_model_len": 400, "kv_cache_tokens": 128}, "the KV cache holds 128 tokens, less than max_model_len 400"),
    ],
)
def test_impossible_sizes_are_one_line(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message) as caught:
        built(folder, **options)
    assert "\n" not in str(caught.value)


def test_a_cache_that_no_host_can_hold_is_rejected_before_weights_are_read(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "wide", Shape(num_layers=8, num_heads=8, num_kv_heads=8, head_dim=64))
    said: list[Progress] = []
    with pytest.raises(StartError, match=r"a KV cache of 1,000,000,000 tokens takes .* this process may use") as caught:
        built(folder, said, kv_cache_tokens=1_000_000_000, block_size=128, dtype="float32")
    assert "\n" not in str(caught.value)
    assert said == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariance_is_promised_or_rejected_in_one_line(folder: Path, dtype: str) -> None:
    if getattr(torch, dtype) in cpu_ops(batch_invariant=True).invariant_dtypes:
        assert "amx" not in built(folder, kv_cache_tokens=256, dtype=dtype, batch_invariant=True).facts.kernels
        return
    with pytest.raises(StartError, match=r"--batch-invariant is not possible in bfloat16 .*: set --dtype to float32"):
        built(folder, kv_cache_tokens=256, dtype=dtype, batch_invariant=True)


def test_layers_with_a_state_have_blocks_that_hold_it_and_limits_of_their_own(tmp_path: Path) -> None:
    shape = Shape(family="qwen3_next", max_position_embeddings=512, extra={"linear_value_head_dim": 32})
    folder, weights = checkpoints.write(tmp_path / "next", shape), checkpoints.random_weights(shape)
    checkpoints.write_weights(folder, weights | {"mtp.fc.weight": torch.zeros(2, 2)})  # as real checkpoints have it
    facts = built(folder, kv_cache_tokens=1000, dtype="float32").facts
    assert facts.block_size == 48  # of 256 bytes for a token of a layer; a state takes 10,496
    assert (facts.num_blocks, facts.block_bytes) == (2 * 21, 48 * 256)
    with pytest.raises(StartError, match="--batch-invariant is not possible for layers with a state"):
        built(folder, batch_invariant=True, dtype="float32")


def test_latent_rows_take_their_memory(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "latent", Shape(family="deepseek_v2", max_position_embeddings=512))
    runner = built(folder, kv_cache_tokens=512, dtype="float32")
    assert (runner.facts.kv_bytes_per_token, runner.blocks.shape[2]) == (2 * 32 * 4, 16 * 2 * 32 * 4)
    with pytest.raises(StartError, match="--batch-invariant is not possible for latent attention"):
        built(folder, batch_invariant=True, dtype="float32")


def test_missing_and_damaged_models_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        built(tmp_path / "absent")
    folder = checkpoints.write(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="truncated or damaged"):
        built(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(
        ModelError, match="GPT2LMHeadModel is not supported; the nearest by its name is LlamaForCausalLM"
    ):
        built(folder)


@pytest.mark.skipif(torch.cuda.is_available(), reason="requests a device that is there")
def test_absent_cuda_is_said(folder: Path) -> None:
    with pytest.raises(NoDeviceError, match=r"^NoDevice: "):
        build(ServeOptions(model=str(folder), device="cuda"), lambda progress: None)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 80 GiB. Advice follows."),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
)
def test_memory_that_runs_out_during_the_start_is_said_and_is_not_too_small(folder: Path, error: Exception) -> None:
    def exhausted(*_: object) -> torch.Tensor:
        raise error

    options = ServeOptions(model=str(folder), device="cpu", kv_cache_tokens=128)
    with pytest.raises(DeviceMemoryError) as found:
        build(options, lambda _: None, ops=replace(CPU, embedding=exhausted))
    said = str(error).removesuffix(". GPU 0 has 80 GiB. Advice follows.")
    assert str(found.value).startswith(f"OutOfDeviceMemory: {said}; end other programs on the device")


def test_another_failure_of_the_start_keeps_its_words(folder: Path) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("no kernel image is available")

    options = ServeOptions(model=str(folder), device="cpu", kv_cache_tokens=128)
    with pytest.raises(RuntimeError, match="no kernel image"):
        build(options, lambda _: None, ops=replace(CPU, embedding=broken))


@pytest.mark.parametrize(
    ("used", "available", "peak", "blocks"),
    [
        (100, 1000, 0, 400),  # half of 1000 less 100
        (100, 1000, 150, 250),
        (100, 300, 0, 150),  # others hold memory: half of what is free
    ],
)
def test_blocks_fill_what_is_left(used: int, available: int, peak: int, blocks: int) -> None:
    memory = MeasuredMemory(
        limit_bytes=1000 * MIB, used_bytes=used * MIB, available_bytes=available * MIB, peak_bytes=peak * MIB
    )
    assert cache_blocks(memory, 0.5, MIB) == blocks


def test_no_room_for_a_block_says_what_helps() -> None:
    memory = MeasuredMemory(limit_bytes=100 * MIB, used_bytes=95 * MIB, available_bytes=100 * MIB, peak_bytes=0)
    with pytest.raises(CapacityError, match="90% of 100 MiB is the limit, 95 MiB are taken"):
        cache_blocks(memory, 0.9, MIB)


@pytest.mark.parametrize(
    ("limit", "asked", "capacity", "want"), [(512, 0, 1024, 512), (513, 513, 512, 513), (600, 0, 512, 513)]
)
def test_limit_fits_the_cache(limit: int, asked: int, capacity: int, want: int) -> None:
    assert fitting_limit(limit, asked, capacity) == want


@pytest.mark.parametrize(
    ("data_ranks", "message"), [(1, "the KV cache holds 2048"), (2, "each of 2 parts of the KV cache holds 2048")]
)
def test_a_limit_that_the_cache_does_not_hold_is_refused(data_ranks: int, message: str) -> None:
    with pytest.raises(CapacityError, match=f"^TooSmall: {message} tokens, less than max_model_len 4096"):
        fitting_limit(4096, 4096, 2048, data_ranks)


@pytest.mark.parametrize(
    ("wanted", "checkpoint", "dtype"),
    [
        ("float32", "bfloat16", torch.float32),
        ("bfloat16", None, torch.bfloat16),
        ("float16", "float32", torch.float16),
        ("auto", "float32", torch.float32),
        ("auto", None, torch.float32),
    ],
)
def test_dtype_follows_option_then_checkpoint(wanted: Any, checkpoint: str | None, dtype: torch.dtype) -> None:
    assert placement.choose_dtype(wanted, checkpoint, torch.device("cpu"), capability=(0, 0)) == dtype


@pytest.mark.parametrize(
    ("wanted", "checkpoint", "capability", "dtype"),
    [
        ("auto", "float32", (9, 0), torch.bfloat16),
        ("auto", None, (8, 0), torch.bfloat16),
        ("auto", "float32", (7, 5), torch.float16),
        ("auto", "float16", (9, 0), torch.float16),
        ("auto", "bfloat16", (9, 0), torch.bfloat16),
        ("float32", "float32", (9, 0), torch.float32),
    ],
)
def test_a_card_computes_in_16_bits_unless_it_is_told_otherwise(
    wanted: Any, checkpoint: str | None, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    cuda = torch.device("cuda")
    assert placement.choose_dtype(wanted, checkpoint, cuda, capability=capability) == dtype


def test_automatic_16_bits_depend_on_the_cpu_but_never_on_half_precision() -> None:
    cpu = torch.device("cpu")
    chosen = {placement.choose_dtype("auto", name, cpu, capability=(0, 0)) for name in ("bfloat16", "float16")}
    assert len(chosen) == 1
    assert chosen <= {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_packed_weights_are_in_16_bits_on_every_cpu(name: str) -> None:
    packed = {"capability": (0, 0), "packs_bfloat16": True}
    assert placement.choose_dtype("auto", name, torch.device("cpu"), **packed) == torch.bfloat16  # type: ignore[arg-type]
    assert placement.choose_dtype("auto", "float32", torch.device("cpu"), **packed) == torch.float32  # type: ignore[arg-type]


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(ModelError, match="dtype int8 is not supported"):
        placement.choose_dtype("auto", "int8", torch.device("cpu"), capability=(0, 0))


@pytest.mark.parametrize(
    ("available", "asked", "blocks"),
    [
        (16 * 1024, 0, 4096),  # a quarter
        (64 * 1024, 0, 8192),  # 8 GiB
        (16 * 1024, 6000, 6000),  # the length that was asked for
        (16 * 1024, 99_999, 14_745),  # but not more than the share of what is free
    ],
)
def test_cache_leaves_most_of_a_shared_machine_to_others(available: int, asked: int, blocks: int) -> None:
    memory = MeasuredMemory(
        limit_bytes=128 * 1024 * MIB, used_bytes=0, available_bytes=available * MIB, peak_bytes=0, shared=True
    )
    assert cache_blocks(memory, 0.9, MIB, asked) == blocks


def test_an_encoder_has_places_for_all_that_may_run_and_no_memory_for_them(tmp_path: Path) -> None:
    encoder_checkpoints.write(tmp_path, "bert")
    facts = built(tmp_path, dtype="float32", kv_cache_tokens=4096).facts
    assert (facts.block_size, facts.num_blocks, facts.kv_bytes_per_token) == (16, 256 * 7, 0)
    assert (facts.max_batch_tokens, facts.max_model_len, facts.max_cached_tokens) == (512, 100, 100)
    assert (facts.head, facts.hidden_size) == ("none", 32)
    assert built(tmp_path, dtype="float32", max_batch_tokens=100).facts.max_batch_tokens == 100
    with pytest.raises(StartError, match="--max-batch-tokens 64 is less than the 100 tokens of the longest text"):
        built(tmp_path, dtype="float32", max_batch_tokens=64)
