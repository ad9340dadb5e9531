"""SmolLM3's config as a spec; its answers are held to transformers in test_registry.py."""

from pathlib import Path
from typing import Any

import pytest

from fakes.family_documents import documents
from kvasir_api import hf_config
from kvasir_runtime.errors import ModelError
from kvasir_runtime.models.config import checked
from kvasir_runtime.models.registry import family_of

SMOLLM3 = documents()["smollm3"]


def spec_of(**changes: Any) -> Any:
    config = checked(Path("config.json"), hf_config.flattened(SMOLLM3 | changes))
    return family_of(config).spec(config)


def test_layers_that_do_not_turn_see_everything_too() -> None:
    spec = spec_of(num_hidden_layers=5, no_rope_layers=None)
    assert [spec.is_local(layer) for layer in range(5)] == [False, False, False, True, False]
    assert {attention.kind for attention in spec.attentions} == {"full"}
    assert (spec.rope.kind, spec.local_rope.kind) == ("default", "none")


@pytest.mark.parametrize("turning", [[], [1, 0], [1] * 4])
def test_layers_that_are_not_all_named_are_refused(turning: list[int]) -> None:
    with pytest.raises(ModelError, match="no_rope_layers must name 0 or 1 for each of 3 layers"):
        spec_of(no_rope_layers=turning)
