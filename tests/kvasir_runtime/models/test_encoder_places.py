"""Encoders: hidden states, labels and counts of parameters are those of transformers; a text has the same in any batch.

Texts of many lengths in one step, behind one another and without padding, single ones and pairs.
"""

import random
from collections import deque
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from fakes import encoder_checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.encoder_checkpoints import DECODERS, ENCODERS, LONGEST, VOCAB, hidden_of, labels_of
from fakes.overlapping import Overlapping
from kvasir_api import forecast
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import RopeConfig, read_config, read_document
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineRequest, PoolingConfig, SamplingConfig

TOLERANCE = 2e-5
NAMES = pytest.mark.parametrize("name", ENCODERS)
WITH_DECODERS = pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
LENGTHS = (1, 17, LONGEST, 5, 5, 64, 2, 33)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory):
    """Folder and judge of a name and a head."""
    root = tmp_path_factory.mktemp("encoders")

    @cache
    def made(name: str, head: str = "", labels: int = 1) -> tuple[Path, torch.nn.Module]:
        folder = root / f"{name}{head}{labels}"
        return folder, encoder_checkpoints.write(folder, name, head=head, labels=labels)

    return made


def texts(*lengths: int, seed: int = 0) -> list[tuple[int, ...]]:
    chooser = random.Random(seed)
    return [tuple(chooser.choices(range(5, VOCAB), k=length)) for length in lengths]


def vectors(runner: ModelRunner, prompts, poolings, *, budget: int = 4096) -> tuple[list[np.ndarray], list[int]]:
    """The vector of each prompt, and the sequences of each step."""
    scheduler = scheduler_of(runner, budget=budget, prefix_cache=False)
    for number, (prompt, pooling) in enumerate(zip(prompts, poolings, strict=True)):
        request = EngineRequest(
            request_id=str(number), prompt=prompt, sampling=SamplingConfig(max_tokens=1), pooling=pooling
        )
        assert scheduler.submit(request, 0.0) is None
    found, steps, flying = dict[str, np.ndarray](), list[int](), deque()
    for now in range(1000):
        plan = scheduler.plan(float(now))
        if plan is None:
            break
        steps.append(len(plan.chunks))
        flying.append(runner.launch(plan))
        for event in scheduler.commit(runner.collect(flying.popleft()), float(now)):
            assert event.finish_reason == "stop", event.message
            found[event.request_id] = np.frombuffer(event.pooled, "<f4")
    assert scheduler.pool.num_pinned == 0
    return [found[str(number)] for number in range(len(prompts))], steps


def runner(folder: Path, **options) -> ModelRunner:
    return runner_of(folder, longest=LONGEST, num_blocks=4096, **options)


@WITH_DECODERS
def test_hidden_states_are_those_of_transformers(judged, name: str) -> None:
    folder, judge = judged(name)
    prompts, kinds = texts(*LENGTHS) * 3, ["cls", "mean", "last"] * len(LENGTHS)
    found, steps = vectors(runner(folder), prompts, [PoolingConfig(kind=kind) for kind in kinds])
    assert steps == [len(prompts)]
    for prompt, kind, vector in zip(prompts, kinds, found, strict=True):
        hidden = hidden_of(judge, prompt)
        want = {"cls": hidden[0], "mean": hidden.mean(dim=0), "last": hidden[-1]}[kind]
        np.testing.assert_allclose(vector, want.numpy(), atol=TOLERANCE, rtol=TOLERANCE)


@NAMES
def test_labels_of_pairs_are_those_of_transformers(judged, name: str) -> None:
    folder, judge = judged(name, "ForSequenceClassification", 3)
    head_of = "mean" if getattr(judge.config, "classifier_pooling", "cls") == "mean" else "cls"
    prompts, seconds = texts(9, 40, 2, 40), (4, 13, 0, 39)
    poolings = [PoolingConfig(kind="labels", head_of=head_of, second_from=at) for at in seconds]
    found, _ = vectors(runner(folder), prompts, poolings)
    for prompt, at, vector in zip(prompts, seconds, found, strict=True):
        want = labels_of(judge, prompt, at)
        np.testing.assert_allclose(vector, want.numpy(), atol=TOLERANCE, rtol=TOLERANCE)


@WITH_DECODERS
def test_a_text_has_the_same_numbers_alone_and_among_others(judged, name: str) -> None:
    folder, _ = judged(name)
    prompts, engine = texts(*LENGTHS, seed=1), runner(folder)
    pooling = [PoolingConfig(kind="mean")]
    together, _ = vectors(engine, prompts, pooling * len(prompts))
    in_steps, steps = vectors(engine, prompts, pooling * len(prompts), budget=LONGEST)
    assert len(steps) > 2
    for prompt, one, other in zip(prompts, together, in_steps, strict=True):
        (alone,), _ = vectors(engine, [prompt], pooling)
        assert alone.tobytes() == one.tobytes() == other.tobytes()


@WITH_DECODERS
def test_parameters_are_counted_as_there_are(judged, name: str) -> None:
    folder, judge = judged(name)
    config = read_config(folder)
    spec = family_of(config).spec(config)
    counted = sum(torch.Size(shape).numel() for shape in parameter_shapes(spec).values())
    base = getattr(judge, "base_model", judge)
    there = {key: value for key, value in base.named_parameters() if "pooler" not in key}
    assert counted == sum(parameter.numel() for parameter in there.values())
    shape = forecast.shape(read_document(folder))
    assert (shape.parameters, shape.max_positions) == (counted, LONGEST)
    assert shape.keeps_nothing
    assert shape.kv_bytes_per_token("float32") == spec.kv_bytes_per_token(4) == 0


@NAMES
@pytest.mark.parametrize("bare", [False, True])
def test_names_with_and_without_the_familys_first_part_are_read(tmp_path: Path, name: str, bare: bool) -> None:
    judge = encoder_checkpoints.write(tmp_path, name, head="ForMaskedLM", bare=bare)
    (vector,), _ = vectors(runner(tmp_path), [(7, 8, 9)], [PoolingConfig(kind="cls")])
    np.testing.assert_allclose(vector, hidden_of(judge, (7, 8, 9))[0].numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_that_sees_both_ways_has_no_head(judged, name: str) -> None:
    folder, judge = judged(name, "ForCausalLM")
    (vector,), _ = vectors(runner(folder), [(7, 8, 9)], [PoolingConfig(kind="last")])
    np.testing.assert_allclose(vector, hidden_of(judge, (7, 8, 9))[-1].numpy(), atol=TOLERANCE)
    shape = forecast.shape(read_document(folder))
    assert (shape.keeps_nothing, shape.head) == (True, 0)


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("gte-qwen2", {"architectures": ("Qwen2ForSequenceClassification",)}, "classification head"),
        ("gte-qwen2", {"sliding_window": 8, "use_sliding_window": True}, "qwen2 with a window"),
        ("mistral-both-ways", {"sliding_window": 8}, "mistral with a window"),
        ("embedding-gemma", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ],
)
def test_a_decoder_that_sees_both_ways_is_refused_what_it_cannot_have(judged, name: str, fields, why: str) -> None:
    config = msgspec.structs.replace(read_config(judged(name)[0]), **fields)
    with pytest.raises(ModelError, match=why):
        family_of(config).spec(config)


def test_rows_on_a_device_give_the_same(judged) -> None:
    folder, _ = judged("bert")
    prompts, seconds = texts(9, 40, 2, 40), (4, 13, 0, 39)
    poolings = [PoolingConfig(kind="mean", second_from=at) for at in seconds]
    on_host, _ = vectors(runner(folder), prompts, poolings)
    on_device, _ = vectors(runner(folder, device_stream=Overlapping()), prompts, poolings)
    assert [vector.tobytes() for vector in on_host] == [vector.tobytes() for vector in on_device]


def test_torch_alone_computes_the_same(judged) -> None:
    folder, judge = judged("modernbert")
    (vector,), _ = vectors(runner(folder, ops=REFERENCE), texts(90), [PoolingConfig(kind="mean")])
    want = hidden_of(judge, texts(90)[0]).mean(dim=0)
    np.testing.assert_allclose(vector, want.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_matrices_in_fewer_bits_stay_near(judged, quantization) -> None:
    folder, judge = judged("bert")
    prompts = texts(20, 70)
    found, _ = vectors(runner(folder, quantization=quantization), prompts, [PoolingConfig(kind="mean")] * 2)
    for prompt, vector in zip(prompts, found, strict=True):
        want = hidden_of(judge, prompt).mean(dim=0).numpy()
        assert vector @ want / np.linalg.norm(vector) / np.linalg.norm(want) > 0.97


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("bert", {"position_embedding_type": "alibi"}, "position_embedding_type alibi"),
        ("bert", {"hidden_act": "gelu_new"}, "hidden_act gelu_new"),
        ("jina", {"position_embedding_type": "absolute"}, "position_embedding_type absolute of JinaBERT"),
        ("jina", {"feed_forward_type": "reglu"}, "feed_forward_type reglu of JinaBERT"),
        ("nomic", {"moe_every_n_layers": 2}, "moe_every_n_layers of NomicBERT"),
        ("gte", {"position_embedding_type": "absolute"}, "position_embedding_type absolute of gte"),
        ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type rms_norm of gte"),
        ("gte", {"logn_attention_scale": True}, "logn_attention_scale True of gte"),
        ("gte", {"rope_scaling": RopeConfig(type="ntk", factor=8.0, mixed_b=0.625)}, "rope type ntk with mixed_b"),
        ("jina-v3", {"position_embedding_type": "alibi"}, "position_embedding_type alibi"),
        ("modernbert", {"classifier_activation": "relu"}, "classifier_activation relu"),
    ],
)
def test_what_would_change_the_numbers_is_refused(judged, name: str, fields, why: str) -> None:
    folder, _ = judged(name)
    config = msgspec.structs.replace(read_config(folder), **fields)
    with pytest.raises(ModelError, match=why):
        family_of(config).spec(config)
