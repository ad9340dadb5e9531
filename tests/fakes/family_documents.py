"""The config.json of each kind of decoder that the fakes write, by name. It must not import our packages."""

from typing import Any

from fakes.checkpoints import ARCHITECTURES, Shape, config_json
from fakes.family_configs import MODELS, NULLS, SIZES


def documents() -> dict[str, dict[str, Any]]:
    """A config.json for each kind of checkpoint that the fakes write."""
    found = dict[str, dict[str, Any]]()
    for family in ARCHITECTURES:
        found[family] = config_json(Shape(family=family, num_layers=4 if "next" in family else 2))
    for name, model in MODELS.items():
        given = SIZES | model.config
        given = {key: one for key, one in given.items() if one is not None or key in NULLS}
        found[name] = given | {"model_type": model.family, "architectures": [model.architecture]}
    return found
