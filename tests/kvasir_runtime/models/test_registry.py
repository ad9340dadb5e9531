"""Dense families: logits and greedy answers are those of transformers, however the work is cut into steps.

Whole and in chunks, behind a cached prefix, preempted, and in a batch with others.
"""

import math
import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch

from fakes import e2m1_checkpoints, family_checkpoints, family_configs, fp8_checkpoints, integer_checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.family_configs import MODELS
from fakes.integer_checkpoints import Style
from fakes.mixed_streams import mixed_streams
from kvasir_api import forecast, inspection
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config, read_document
from kvasir_runtime.models.registry import family_of

TIE, NEARLY = 1e-4, 0.06
NAMES = pytest.mark.parametrize("name", MODELS)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 10_007 + length).choices(range(3, family_configs.VOCAB), k=length))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory):
    """Folder and judge of a name."""
    root = tmp_path_factory.mktemp("families")
    return cache(lambda name: (root / name, family_checkpoints.write(root / name, name)))


@torch.inference_mode()
def wrong_tokens(judge: torch.nn.Module, stream: Stream) -> list[int]:
    """Indices of tokens that are neither the best after those before them nor a tie with it."""
    tokens = torch.tensor([[*stream.prompt, *stream.answer]])
    logits = judge(tokens, use_cache=False).logits[0, len(stream.prompt) - 1 : -1].float()
    given = logits.gather(1, torch.tensor(stream.answer)[:, None])[:, 0]
    return (given < logits.amax(dim=1) - TIE).nonzero()[:, 0].tolist()


@NAMES
def test_answers_are_those_of_transformers(judged, name: str) -> None:
    folder, judge = judged(name)
    hand = Hand(runner_of(folder, num_blocks=1024))
    streams = mixed_streams(hand, prompt)
    for stream in streams:
        assert wrong_tokens(judge, stream) == []
    assert len({token for stream in streams[4:] for token in stream.answer}) > 2


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("phi4-mini", Style(method="gptq", group=32, act_order=True)),
        ("phi4-mini", Style(method="packed", group=32, symmetric=False)),
        ("glm4", Style(method="awq", group=32, symmetric=False)),
        ("command-r", Style(method="int8", bits=8, group=0)),
        ("command-r7b", Style(method="gptq", bits=8, group=32)),
        ("starcoder2", Style(method="awq", group=32, symmetric=False)),
        ("olmoe", Style(method="gptq", group=32)),
    ],
)
def test_in_fewer_bits_answers_are_those_of_the_decoded_weights(tmp_path: Path, name: str, style: Style) -> None:
    judge = family_checkpoints.write(tmp_path, name)
    worth = integer_checkpoints.convert(tmp_path, style)
    if name == "olmoe":
        worth = dict(family_checkpoints.experts_together(worth))
    judge.load_state_dict({key: tensor.float() for key, tensor in worth.items()}, strict=False)
    # The C++ kernels round activations to 8 bits beside such weights: the reference's operations do not.
    hand, stream = Hand(runner_of(tmp_path, ops=REFERENCE, quantization="auto")), Stream(prompt=prompt(40))
    hand.run([stream], 8, chunk=17)
    assert wrong_tokens(judge, stream) == []


def test_mxfp4_experts_answer_as_their_decoded_weights(tmp_path: Path) -> None:
    judge = family_checkpoints.write(tmp_path, "gpt-oss")
    judge.load_state_dict({key: one.float() for key, one in e2m1_checkpoints.convert_experts(tmp_path).items()})
    hand, stream = Hand(runner_of(tmp_path, ops=REFERENCE, quantization="auto")), Stream(prompt=prompt(40))
    hand.run([stream], 8, chunk=17)
    assert wrong_tokens(judge, stream) == []


@pytest.mark.parametrize(("name", "style"), [("glm4-moe", "nvfp4"), ("deepseek-v3", "modelopt"), ("glm4", "mxfp4")])
def test_in_e2m1_answers_are_those_of_the_decoded_weights(tmp_path: Path, name: str, style: str) -> None:
    judge = family_checkpoints.write(tmp_path, name, q_lora_rank=32, kv_lora_rank=32, v_head_dim=32)
    worth = e2m1_checkpoints.convert(tmp_path, style)
    together = dict(family_checkpoints.experts_together(worth)) if name != "glm4" else worth
    judge.load_state_dict({key: one.float() for key, one in together.items() if "layers.3." not in key}, strict=False)
    hand, stream = Hand(runner_of(tmp_path, ops=REFERENCE, quantization="auto")), Stream(prompt=prompt(40))
    hand.run([stream], 8, chunk=17)
    assert wrong_tokens(judge, stream) == []


@torch.inference_mode()
def test_the_processors_own_kernels_answer_nearly_the_best_for_gpt_oss(tmp_path: Path) -> None:
    """In bfloat16, experts in 4 bits with biases: for nine tokens of ten within a part of the logits' spread."""
    judge = family_checkpoints.write(tmp_path, "gpt-oss")
    judge.load_state_dict({key: one.float() for key, one in e2m1_checkpoints.convert_experts(tmp_path).items()})
    runner = runner_of(tmp_path, ops=cpu_ops(), dtype=torch.bfloat16, quantization="auto")
    streams = [Stream(prompt=prompt(length, seed=5)) for length in (1, 17, 130, 64, 5)]
    Hand(runner).run(streams, 10, chunk=40)
    off = list[float]()
    for stream in streams:
        logits = judge(torch.tensor([stream.tokens]), use_cache=False).logits[0, len(stream.prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(stream.answer)[:, None])[:, 0]
        off += ((logits.amax(dim=1) - chosen) / logits.std(dim=1)).tolist()
    assert sorted(off)[len(off) * 9 // 10] < NEARLY


def test_fp8_blocks_of_deepseek_answer_as_their_decoded_weights(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128, "n_shared_experts": 1}
    judge = family_checkpoints.write(tmp_path, "deepseek-v3", q_lora_rank=128, v_head_dim=64, **sizes)
    worth = dict(family_checkpoints.experts_together(fp8_checkpoints.convert(tmp_path, "block")))
    judge.load_state_dict({key: one.float() for key, one in worth.items() if "layers.3." not in key})
    hand, stream = Hand(runner_of(tmp_path, ops=REFERENCE, quantization="auto")), Stream(prompt=prompt(40))
    hand.run([stream], 8, chunk=17)
    assert wrong_tokens(judge, stream) == []


@NAMES
def test_parameters_are_counted_as_there_are(judged, name: str) -> None:
    folder, judge = judged(name)
    config = read_config(folder)
    shapes = parameter_shapes(family_of(config).spec(config))
    counted = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert counted == sum(tensor.numel() for tensor in family_checkpoints.tensors_of(judge).values())
    assert forecast.shape(read_document(folder)).parameters == counted


@NAMES
def test_what_each_layer_has_is_counted_as_it_is(judged, name: str) -> None:
    folder, _ = judged(name)
    config = read_config(folder)
    spec, shape = family_of(config).spec(config), forecast.shape(read_document(folder))
    numbers, routed = Counter[int](), Counter[int]()
    for tensor, size in parameter_shapes(spec).items():
        if tensor.startswith("layers."):
            layer, count = int(tensor.split(".")[1]), math.prod(size)
            numbers[layer] += count
            routed[layer] += count if ".experts." in tensor and tensor.endswith(".weight") else 0
    kinds = shape.layer_kinds
    assert [kind.matrices + kind.others for kind in kinds] == [numbers[layer] for layer in range(spec.num_layers)]
    assert [kind.routed for kind in kinds] == [routed[layer] for layer in range(spec.num_layers)]
    assert shape.joined == spec.joined
    groups = {layer: index for index, group in enumerate(spec.cache_groups) for layer in group.layers}
    assert dict(enumerate(shape.cache_group_of)) == groups
    facts = inspection.ModelFacts(architecture="A", supported=True, cpu_dtype="float32", shape=shape)
    assert inspection.decode(inspection.encode(facts).decode()) == facts
