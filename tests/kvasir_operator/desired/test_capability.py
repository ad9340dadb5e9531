"""What a class's devices cannot compute is refused by the field that requests it, before a device is taken."""

from typing import Any

import pytest

from fakes.manifests import service
from fakes.models import LLAMA_8B, facts, words
from fakes.stages import resolved
from kvasir_api import forecast
from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.options import RuntimeOptions
from kvasir_api.status import ModelStatus
from kvasir_operator.desired.accelerator import placement
from kvasir_operator.desired.capability import missing_capability
from kvasir_operator.observed.service import Observed, observed
from kvasir_operator.observed.settings import OperatorSettings

AMPERE, ADA, TURING = ({"capability": version} for version in ("8.0", "8.9", "7.5"))


def seen(classes: dict[str, Any], *, inspected: bool = False, accelerator: Any = None, **runtime: Any) -> Observed:
    asked = accelerator or {"classes": list(classes)}
    uri = "pvc://models/a"
    obj = service(model={"uri": uri}, resources={"accelerator": {"count": 1, **asked}}, runtime=runtime)
    status = ModelStatus(uri=uri, facts=words() if inspected else "").model_dump(by_alias=True)
    known = [{"metadata": {"name": n}, "spec": {"memory": "80Gi", "compute": c}} for n, c in classes.items()]
    return observed(
        obj | {"status": {"model": status}}, revisions=(), deployments=(), replicas=(), svc=None, classes=known
    )


def test_a_model_in_32_bits_is_computed_in_the_16_bits_that_a_card_has() -> None:
    wide = facts(shape=forecast.shape({**LLAMA_8B, "torch_dtype": "float32"}))
    card = AcceleratorClassSpec.model_validate({"resource": "a.b/c", "image": "i", "memory": "80Gi", "compute": TURING})
    assert missing_capability(RuntimeOptions(), wide, card) is None
    assert missing_capability(RuntimeOptions(), facts(), card) is not None


@pytest.mark.parametrize(
    ("compute", "inspected", "runtime", "field", "why"),
    [
        (AMPERE, False, {"quantization": "fp8"}, "quantization", "fp8 needs compute capability 8.9, it has 8.0; int8"),
        (AMPERE, False, {"kvCacheDtype": "fp8"}, "kvCacheDtype", "fp8 needs compute capability 8.9, it has 8.0; int8"),
        (TURING, False, {"dtype": "bfloat16"}, "dtype", "bfloat16 needs compute capability 8.0, it has 7.5; float16"),
        (TURING, True, {}, "dtype", "the model's bfloat16 needs compute capability 8.0, it has 7.5; float16"),
        (TURING, True, {"dtype": "float16"}, "", ""),
        (TURING, False, {}, "", ""),  # nobody has looked at the model yet
        (AMPERE, True, {"quantization": "int8", "kvCacheDtype": "int8"}, "", ""),
        (ADA, True, {"quantization": "fp8", "kvCacheDtype": "fp8"}, "", ""),
        ({"capability": "10.0"}, True, {"quantization": "fp8"}, "", ""),
        ({}, True, {"quantization": "fp8"}, "", ""),  # not declared: nothing is known
    ],
)
def test_what_a_card_cannot_do(compute: Any, inspected: bool, runtime: Any, field: str, why: str) -> None:
    found = resolved(seen({"card": compute}, inspected=inspected, **runtime), OperatorSettings()).violation
    if not field:
        assert found is None
        return
    assert found is not None
    assert found.reason == "Unsupported"
    assert found.message.startswith(f"spec.runtime.{field}: card: {why}")


def test_the_next_class_that_can_is_taken() -> None:
    world = seen({"old": AMPERE, "new": ADA}, quantization="fp8")
    assert (placement(world).choice.name, resolved(world, OperatorSettings()).violation) == ("new", None)
    assert placement(world).choice.why == (
        "old: fp8 needs compute capability 8.9, it has 8.0; int8 takes as little memory; new is there"
    )
    cheapest = seen({"a": AMPERE, "b": ADA}, accelerator={"minMemory": "1Gi"}, quantization="fp8")
    assert placement(cheapest).choice.name == "b"


def test_a_class_that_does_not_exist_is_told_beside_one_that_cannot() -> None:
    world = seen({"old": AMPERE}, accelerator={"classes": ["gone", "old"]}, quantization="fp8")
    found = resolved(world, OperatorSettings()).violation
    assert found is not None
    assert found.message.startswith("spec.runtime.quantization: gone does not exist; old: fp8 needs")
