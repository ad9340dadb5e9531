"""Which models transformers computes, and what is refused in a sentence before it is served."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

from fakes import checkpoints, family_checkpoints, undeclared_checkpoints
from fakes.by_hand import CPU_DEVICE
from fakes.overlapping import WeightCopies
from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import CapacityError, ModelError, StartError, UnservedError
from kvasir_runtime.kernels.cpu.ops import CPU
from kvasir_runtime.layers.transformers_decoder import TransformersDecoder
from kvasir_runtime.runner.startup import host_resources, load_transformers, placement
from kvasir_runtime.runner.startup.load_model import LoadedModel, load_model


def loaded(folder: Path, **options: Any) -> LoadedModel:
    given = ServeOptions(model=str(folder), **{"dtype": "float32"} | options)
    return load_model(given, folder, CPU_DEVICE, CPU, lambda _: None)


def changed(folder: Path, **fields: Any) -> Path:
    """config.json with these fields; None takes one out."""
    path = folder / "config.json"
    found = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))
    return folder


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    undeclared_checkpoints.write(tmp_path / "gpt2", "gpt2")
    return tmp_path / "gpt2"


def test_an_undeclared_architecture_is_computed_by_transformers(gpt2: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = loaded(gpt2)
    assert isinstance(found.model, TransformersDecoder)
    assert found.through_transformers
    assert "architecture GPT2LMHeadModel is computed by transformers, slowly" in caplog.text
    assert found.kernels(CPU) == f"{CPU.name}, layers of transformers {transformers.__version__}"
    assert found.max_model_len == 256
    assert found.weights_bytes == 4 * sum(one.numel() for one in load_file(gpt2 / "model.safetensors").values())


def test_a_declared_architecture_is_computed_by_kvasir_unless_the_option_says_so(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "llama", checkpoints.Shape())
    assert not loaded(folder).through_transformers
    assert loaded(folder, model_impl="transformers").through_transformers


def test_an_undeclared_architecture_is_refused_where_only_kvasir_may_compute(gpt2: Path) -> None:
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel is not supported; .*kvasir-serving\[transformers\]"):
        loaded(gpt2, model_impl="kvasir")


def test_a_config_that_a_family_refuses_is_computed_by_transformers_where_the_option_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    family_checkpoints.write(tmp_path, "olmoe", clip_qkv=0.5)
    with caplog.at_level(logging.WARNING):
        assert loaded(tmp_path, model_impl="transformers").through_transformers
    assert "is computed by transformers, slowly: --model-impl says so" in caplog.text
    wanted = r"clip_qkv of OLMoE is not supported; --model-impl transformers may serve it"
    for options in ({}, {"model_impl": "kvasir"}, {"quantization": "int8"}):
        with pytest.raises(UnservedError, match=wanted):
            loaded(tmp_path, **options)


def test_what_neither_serves_is_refused_with_both_reasons(tmp_path: Path) -> None:
    family_checkpoints.write(tmp_path, "bloom")
    changed(tmp_path, apply_residual_connection_post_layernorm=True)
    with pytest.raises(ModelError, match=r"calls? transformers' attention 0 times.*post_layernorm of BLOOM is not"):
        loaded(tmp_path, model_impl="transformers")


@pytest.mark.parametrize("impl", ["auto", "transformers"])
def test_without_the_extra_the_sentence_names_it(gpt2: Path, monkeypatch: pytest.MonkeyPatch, impl: str) -> None:
    monkeypatch.setattr(load_transformers, "is_installed", lambda: False)
    with pytest.raises(StartError, match=r"pip install 'kvasir-serving\[transformers\]'"):
        loaded(gpt2, model_impl=impl)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mamba", "it has layers with a recurrent state"),
        ("lfm2", "its 4 layers call transformers' attention 2 times, expected once each"),
        ("bloom", "its 2 layers call transformers' attention 0 times"),
        ("bert", "BertSelfAttention does not attend to all of a sequence"),
    ],
)
def test_what_blocks_do_not_hold_is_refused(tmp_path: Path, name: str, why: str) -> None:
    undeclared_checkpoints.write(tmp_path, name)
    with pytest.raises(ModelError, match=f"cannot be served through transformers: {why}"):
        loaded(tmp_path, model_impl="transformers")


def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path) -> None:
    sizes = {"d_model": 32, "d_ff": 32, "d_kv": 8, "num_heads": 4, "num_layers": 1, "vocab_size": 64}
    T5ForConditionalGeneration(T5Config(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"it has an encoder and a decoder.*T5ForConditionalGeneration is not supported"
    ):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"model_type": "gpt2_of_mine"}, "has no model_type gpt2_of_mine; code of a checkpoint is never run"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized weights .quantization_config. are not read"),
        (
            {"architectures": ["GPT2ForSequenceClassification"]},
            "names GPT2ForSequenceClassification, and of model_type gpt2 GPT2LMHeadModel generates",
        ),
        ({"n_layer": 4}, "tensor transformer.h.3.* is missing, or of another shape"),
        ({"n_embd": 128}, "is missing, or of another shape"),
        ({"n_layer": 10**9}, "config.json has 1,000,000,000 layers, more than the checkpoint's 40 tensors"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(gpt2: Path, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        loaded(changed(gpt2, **fields))


def test_code_of_a_checkpoint_is_never_run(gpt2: Path) -> None:
    (gpt2 / "mine.py").write_text(f"open({str(gpt2 / 'was_run')!r}, 'w')\nclass Mine: pass\n")
    auto = {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}
    assert loaded(changed(gpt2, auto_map=auto)).through_transformers
    with pytest.raises(ModelError, match="code of a checkpoint is never run"):
        loaded(changed(gpt2, model_type="mine"))
    assert not (gpt2 / "was_run").exists()


def test_a_truncated_file_is_refused(gpt2: Path) -> None:
    path = gpt2 / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or damaged"):
        loaded(gpt2)


def test_pickled_weights_are_refused(gpt2: Path) -> None:
    torch.save(load_file(gpt2 / "model.safetensors"), gpt2 / "pytorch_model.bin")
    (gpt2 / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has only pickled weights"):
        loaded(gpt2)


@pytest.mark.parametrize(
    "option",
    [{"quantization": "int8"}, {"batch_invariant": True}, {"weights_host_bytes": 1 << 20}, {"tensor_parallel_size": 2}],
)
def test_options_that_cannot_be_followed_are_refused(gpt2: Path, option: dict[str, Any]) -> None:
    name = "--" + next(iter(option)).replace("_", "-")
    with pytest.raises(StartError, match=f"{name} cannot be used where transformers computes {gpt2} "):
        loaded(gpt2, **option)


def test_more_positions_than_the_model_has_are_refused(gpt2: Path) -> None:
    assert loaded(gpt2, max_model_len=100).max_model_len == 100
    with pytest.raises(ModelError, match="max_model_len 257 is more than the model's 256 positions"):
        loaded(gpt2, max_model_len=257)


def test_a_tied_head_is_loaded_where_the_checkpoint_has_the_table_alone(gpt2: Path) -> None:
    weights = load_file(gpt2 / "model.safetensors")
    assert "lm_head.weight" not in weights
    save_file(weights, gpt2 / "model.safetensors", metadata={"format": "pt"})
    assert loaded(gpt2).model.spec.vocab_size == undeclared_checkpoints.VOCAB


def test_a_config_of_a_larger_model_than_fits_is_refused_before_the_library_makes_it(gpt2: Path) -> None:
    """Of the size that config.json gives, and not of that of the checkpoint beside it."""
    with pytest.raises(CapacityError, match="the weights take 25,600,"):
        loaded(changed(gpt2, vocab_size=10**11))


def test_what_a_card_takes_must_fit_on_the_host_first(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    monkeypatch.setattr(host_resources, "memory_limit_bytes", lambda: 64)
    options = ServeOptions(model=str(gpt2), dtype="float32")
    with pytest.raises(CapacityError, match="64 are there on the host, through which transformers loads them"):
        load_model(options, gpt2, torch.device("cuda"), CPU, lambda _: None)


def test_what_is_pinned_on_the_host_must_fit(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_resources, "memory_limit_bytes", lambda: 1 << 30)
    options = ServeOptions(model=str(gpt2), dtype="float32", kv_host_bytes=(1 << 30) + 1)
    with pytest.raises(StartError, match="--kv-host-bytes 1,073,741,825: this process may use 1,073,741,824 bytes"):
        load_model(options, gpt2, CPU_DEVICE, CPU, lambda _: None, WeightCopies())


@pytest.mark.parametrize("impl", ["kvasir", "transformers"])
def test_a_declared_architecture_without_room_for_a_cache_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impl: str
) -> None:
    folder = checkpoints.write(tmp_path / "llama", checkpoints.Shape())
    weights_bytes = loaded(folder).weights_bytes
    monkeypatch.setattr(host_resources, "memory_limit_bytes", lambda: weights_bytes + 4096)
    with pytest.raises(CapacityError, match="raise --memory-fraction"):
        loaded(folder, model_impl=impl)
