"""Which experts a token goes to, and what each counts: by the logits of a router. The formulas are those of `moe`.

Called by the layers with experts of every table of kernels.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which experts a token goes to. top_k: of them. renormalised: the shares of the chosen are scaled to sum 1.

    sigmoid: scores are sigmoids of the logits, each by itself, in place of a softmax over all. scaled_inputs: a share
    multiplies what an expert reads, not what it gives.
    groups: of equally many experts that lie side by side; only those of the top_groups best are chosen from. A group is
    as good as its group_best best experts together. mixer: shares of a sparse mixer (`mixed`), and its distance; 0
    without. held: numbers of the experts that a rank computes, whose weights are given; None for all.
    """

    top_k: int
    renormalised: bool
    sigmoid: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    scaled_inputs: bool = False
    mixer: float = 0.0
    held: range | None = None

    @property
    def by_itself(self) -> bool:
        """Whether the share of an expert follows from its own number, without a softmax behind the choice."""
        return self.sigmoid or self.mixer > 0

    def computed(self, router: Tensor) -> range:
        """Numbers of the experts whose weights are given. router: its matrix."""
        return range(router.shape[0]) if self.held is None else self.held


def ranked(logits: Tensor, routing: Routing, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores that experts are chosen by, and logarithms of what shares follow from: both (tokens, experts) float32.

    bias: of the choice. Experts of groups that are not chosen have a score of minus infinity.
    """
    wide = logits.float()
    if routing.mixer:
        return wide, mixed(wide, routing.mixer)
    scores, worth = (wide.sigmoid(), F.logsigmoid(wide)) if routing.sigmoid else (wide, wide)
    if bias is None and routing.groups == 1:
        return wide, worth  # in whose order the sigmoids are, where those of large logits are equal too
    if bias is not None:
        scores = (scores if routing.sigmoid else wide.softmax(dim=1)) + bias
    if routing.groups == 1:
        return scores, worth
    grouped = scores.unflatten(1, (routing.groups, scores.shape[1] // routing.groups))
    best = grouped.topk(routing.group_best, dim=2).values.sum(dim=2)
    kept = best.sort(dim=1, descending=True, stable=True).indices[:, : routing.top_groups]
    left_out = torch.ones_like(best, dtype=torch.bool).scatter_(1, kept, False)
    return grouped.masked_fill(left_out.unsqueeze(2), float("-inf")).flatten(1), worth


def mixed(logits: Tensor, distance: float) -> Tensor:
    """Logarithms of the shares that a sparse mixer gives the best expert of a token, and any other as its second.

    Each is a softmax over those whose logit is near its own, for the second without the best: (tokens, experts)
    float32. distance: of logits that are near, half of it, as a part of the larger size. Liu et al. 2024 (GRIN).
    """
    best = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, logits.argmax(dim=1, keepdim=True), True)

    def share(rest: Tensor) -> Tensor:
        top = rest.amax(dim=1, keepdim=True)
        is_far = (top - logits) / logits.abs().maximum(top) > 2 * distance
        return logits - rest.masked_fill(is_far, float("-inf")).logsumexp(dim=1, keepdim=True)

    return torch.where(best, share(logits), share(logits.masked_fill(best, float("-inf"))))


def shares(scores: Tensor, worth: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Of each token the experts that it goes to, ascending, int64, and their shares, float32: both (tokens, top_k).

    scores, worth: as `ranked` gives them.
    """
    order = scores.sort(dim=1, descending=True, stable=True).indices
    chosen = order[:, : routing.top_k].sort(dim=1).values
    mine = worth.gather(1, chosen)
    if routing.renormalised:
        return chosen, mine.softmax(dim=1)
    return chosen, mine.exp() if routing.by_itself else worth.softmax(dim=1).gather(1, chosen)
