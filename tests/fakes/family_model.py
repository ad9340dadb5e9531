"""A kind of tiny model that the fakes write, as its config."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """config: beside `family_configs.SIZES`, None leaves one of those out. like: what transformers computes in place of
    a family that it has not. attention: its implementation of it; eager of Falcon adds linear biases twice.
    """

    architecture: str
    family: str
    config: dict[str, Any] = field(default_factory=dict)
    like: dict[str, Any] = field(default_factory=dict)
    attention: str = "eager"
