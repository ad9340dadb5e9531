"""Each family answers with each drafter as without: by the declarations, so that a new one comes in.

`make test` computes as few families as have every part of a layer that any has, each with one drafter, `make test-long`
all of them with all drafters and all wishes of requests. Layers that draft (MTP) are in `test_draft_head`: a family has
its own.
"""

import json
import os
from collections.abc import Callable
from functools import cache
from itertools import cycle, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fakes import checkpoints, family_cover
from fakes.by_hand import scheduler_of
from fakes.checkpoints import Shape
from fakes.drafter import RecordedDrafter
from fakes.family_cover import DOCUMENTS, covering
from fakes.mixtures import WISHES, Story, request, served, told
from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.speculation.drafters import Draft, ModelDrafter, TokenHistory
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.models.config import read_config
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import EngineRequest

pytestmark = pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")

IS_LONG = os.environ.get("KVASIR_FAMILY_MATRIX") == "all"
NUM_TOKENS = 256 if IS_LONG else 64
DRAFTERS = ("recorded", "suffix", "a model", "ngram", "recent answers", "a head", "another vocabulary")
OWN = ("a model", "another vocabulary", "a head")
"""Drafters with weights, whose drafts are hardly ever right here."""
SOME = tuple(range(len(WISHES))) if IS_LONG else (0, 2, 6, 8)
"""Wishes of requests: greedy, filtered with a seed, penalties, and few tokens, which are certain to repeat."""


class Few(ModelDrafter):
    """Drafts so many that a test is quick."""

    def propose(self, history: TokenHistory, most: int) -> Draft:
        return super().propose(history, min(most, 2))


def cases() -> list[tuple[str, str]]:
    if IS_LONG:
        return [(name, drafter) for name, drafter in product(DOCUMENTS, DRAFTERS) if drafter not in OWN or sees(name)]
    return list(zip(covering(), cycle(DRAFTERS), strict=False))


def sees(name: str) -> bool:
    """Whether a layer sees the whole text, as drafters with weights require."""
    return DOCUMENTS[name]["model_type"] != "mamba2"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    checkpoints.write(root / "a model", Shape(num_layers=1, hidden_size=32, num_heads=2, seed=21))
    checkpoints.write(root / "another vocabulary", Shape(vocab_size=290, num_layers=1, seed=5))
    return root


@pytest.fixture(scope="module")
def written(root: Path) -> Callable[[str], Path]:
    @cache
    def folder_of(name: str) -> Path:
        family_cover.write(root / name, name)
        checkpoints.write_tokenizer(root / name)
        return root / name

    return folder_of


def write_head(folder: Path, target: Path) -> None:
    """A head of EAGLE-3 of random numbers for a model, which reads what the first of its layers gives."""
    config = read_config(target, "")
    hidden, width, wide, ids = config.hidden_size, 32, 48, config.vocab_size
    document = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu"}
    document |= {"hidden_size": hidden, "intermediate_size": wide, "num_hidden_layers": 1, "vocab_size": ids}
    document |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
    document |= {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32"}
    document |= {"draft_vocab_size": ids, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0]}}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(document))
    shapes = dict.fromkeys(("hidden_norm", "input_layernorm", "post_attention_layernorm"), (hidden,))
    shapes |= {f"self_attn.{name}_proj": (width, 2 * hidden) for name in "qkv"} | {"self_attn.o_proj": (hidden, width)}
    shapes |= {"mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide)}
    shapes = {f"midlayer.{name}": shape for name, shape in shapes.items()}
    shapes |= {"fc": (hidden, hidden), "norm": (hidden,), "lm_head": (ids, hidden)}
    generator = torch.Generator().manual_seed(4)
    weights = {f"{name}.weight": torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def built(folder: Path, speculation: str) -> ModelRunner:
    sizes = {"kv_cache_tokens": 8192, "block_size": 8, "max_sequences": 12, "max_model_len": 384}
    given = {"dtype": "float32", "startup_cache": "", "speculation": speculation, **sizes}
    return build(ServeOptions(model=str(folder), device="cpu", **given), lambda _: None)


def requests() -> list[EngineRequest]:
    return [request(number, **{**WISHES[number], "max_tokens": NUM_TOKENS}) for number in SOME]


def heard(story: Story) -> dict[str, tuple[object, ...]]:
    return {name: told(events) for name, events in story.items()}


def texts(story: Story) -> list[list[int]]:
    return [
        [*one.prompt, *(token for event in story[one.request_id] for token in event.token_ids)] for one in requests()
    ]


@pytest.fixture(scope="module")
def plain(written: Callable[[str], Path]) -> Callable[[str], Story]:
    return cache(lambda name: served(built(written(name), "off"), requests(), depth=1, budget=64))


@pytest.mark.parametrize(("name", "drafter"), cases())
def test_drafts_change_no_answer_of_a_family(
    root: Path, written: Callable[[str], Path], plain: Callable[[str], Story], name: str, drafter: str
) -> None:
    folder, want = written(name), plain(name)
    if drafter == "a head" and not (root / f"head of {name}").exists():
        write_head(root / f"head of {name}", folder)
    own = {"a head": f"head of {name}"}.get(drafter, drafter)
    made = built(folder, str(root / own) if drafter in OWN else "suffix")
    known = {"recorded": RecordedDrafter(texts(want))} | {each: Few() for each in OWN}
    scheduler = scheduler_of(
        made,
        budget=64,
        speculation="ngram" if drafter == "ngram" else "suffix",
        drafter=known.get(drafter),
        max_cached_answers=8 if drafter == "recent answers" else 0,
    )
    for _ in range(2 if drafter == "recent answers" else 1):
        story = served(made, requests(), depth=1, scheduler=scheduler)
        assert heard(story) == heard(want)
    ends = [not one.sampling.ignore_eos for one in requests()]
    lengths = [len(heard(story)[one.request_id][0]) for one in requests()]
    assert {length for length, ends_early in zip(lengths, ends, strict=True) if not ends_early} == {NUM_TOKENS}
    totals = scheduler.report(RuntimeState()).totals
    assert totals.drafted_tokens > NUM_TOKENS / 8
    if drafter == "recorded" or drafter in OWN:
        assert totals.accepted_tokens < totals.drafted_tokens
