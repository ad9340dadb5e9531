"""Which part of a decoder one process of several computes, as data. `sharding` says what a part is."""

from dataclasses import dataclass

from kvasir_api import expert_layers
from kvasir_api.expert_layers import Parallelism


@dataclass(frozen=True, slots=True)
class Rank:
    """The index-th part of count. whole_experts: it has some experts, and not a part of each. parallelism: of all that
    is no expert and no vocabulary, tensor: a part of each layer, or data: all of it, for sequences of its own.
    """

    index: int = 0
    count: int = 1
    whole_experts: bool = False
    parallelism: Parallelism = "tensor"

    @property
    def is_data(self) -> bool:
        """Whether ranks have sequences of their own."""
        return self.parallelism == "data" and self.count > 1

    @property
    def option(self) -> str:
        """By which there are several, for messages."""
        return expert_layers.option(self.parallelism, self.count, whole=self.whole_experts)

    def leaves_out(self) -> tuple[str, ...]:
        """Tensors of a layer that it leaves to the first rank, since they are added once to a sum over ranks."""
        if not self.index:
            return ()
        of_layer = () if self.is_data else ("output.bias", "down.bias")
        return of_layer if self.whole_experts else (*of_layer, "experts.down.bias")
