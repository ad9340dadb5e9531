"""Options for copies of experts that many tokens go to (expert parallelism load balancing), by vLLM's names; part of `options`."""

from typing import Annotated

import msgspec

from kvasir_api.option_fields import option


class EplbConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """num_redundant_experts: copies in each layer, on all ranks together; 0 for one on each rank. step_interval: steps
    from one choice of copies to the next, at least. window_size: of them the last that count, at least; a larger one is
    the interval. log_balancedness: log at each choice how even the ranks' loads are.
    """

    num_redundant_experts: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    window_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000
    step_interval: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 3000
    log_balancedness: bool = False


def parsed(text: str) -> EplbConfig:
    """The configuration in JSON, "" for all defaults. Raises ValueError with what is wrong."""
    try:
        return msgspec.json.decode(text, type=EplbConfig) if text else EplbConfig()
    except msgspec.MsgspecError as error:
        raise ValueError(f"eplbConfig: {error}") from error


def check(enabled: bool, config: str, whole_experts: bool, ranks: int, stages: int, batch_invariant: bool) -> None:
    """Raises ValueError where copies are not possible with the other options."""
    copies = parsed(config).num_redundant_experts
    if config and not enabled:
        raise ValueError("eplbConfig needs enableEplb")
    if not enabled:
        return
    if not whole_experts:
        raise ValueError("enableEplb needs enableExpertParallel: only whole experts are copied")
    if stages > 1:
        raise ValueError("enableEplb needs pipelineParallelSize 1: rank 0 counts where all tokens go")
    if batch_invariant:
        raise ValueError("enableEplb is not possible with batchInvariant: which rank adds what depends on the step")
    if copies % ranks:
        raise ValueError(f"eplbConfig: num_redundant_experts {copies} cannot be divided among {ranks} ranks")


ENABLE_EPLB: bool = option(
    False,
    "Copy experts that many tokens go to on other ranks as well, chosen by what was routed lately. Needs --enable-expert-parallel, and memory for the copies.",
)
EPLB_CONFIG: str = option(
    "",
    'How, as a JSON object: {"num_redundant_experts": copies in each layer on all ranks together (default one on each rank), "window_size": steps that count, at least (1000), "step_interval": steps between choices (3000), "log_balancedness": log at each how even loads are (false)}.',
    metavar="JSON",
    max_length=4096,
)
