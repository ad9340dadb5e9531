"""The condition of model names that belong to another service."""

import pytest

from fakes.situations import findings, replica
from kvasir_api.served_names import NameConflict
from kvasir_operator.status.compose import compose

READY = replica("ready")
ASK = "to take it over, take it out of the spec and, when this condition is gone, put it in again"


@pytest.mark.parametrize(
    ("conflicts", "model_name", "refused", "message"),
    [
        ((), "tiny", [], ""),
        (
            (NameConflict(served_name="tiny", holder="other/first", refused=True),),
            "default/tiny",
            ["tiny"],
            "spec.model.servedName: tiny is served by InferenceService other/first",
        ),
        (
            (NameConflict(served_name="small", holder="default/first", refused=False),),
            "tiny",
            [],
            "spec.model.aliases: small is served by InferenceService default/first",
        ),
        (
            (NameConflict(served_name="tiny", holder="", refused=True),),
            "default/tiny",
            ["tiny"],
            "spec.model.servedName: tiny belonged to another namespace when this service claimed it, and is free now; "
            + ASK,
        ),
        (
            (NameConflict(served_name="tiny", holder="", refused=True, reserved_for="models"),),
            "default/tiny",
            ["tiny"],
            "spec.model.servedName: tiny is reserved for namespace models (--reserve-model-name of the operator)",
        ),
    ],
    ids=["none", "another namespace", "an alias", "free", "reserved"],
)
def test_a_name_of_another_is_told_and_kept(conflicts, model_name, refused, message):
    status, _ = compose(findings(READY, name_conflicts=conflicts))
    said = [c.message for c in status.conditions if c.type == "NameConflict"]
    whole = [f"{message}. Clients reach this service as default/tiny"] if message else []
    assert (status.model_name, status.refused_names, said) == (model_name, refused, whole)
