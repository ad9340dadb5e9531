"""What families with mixtures of experts share: sizes from a config, and where a checkpoint's experts go.

A checkpoint stores each expert's matrices as tensors of their own; ours hold all experts of a layer one below the
other, so that each tensor of the file has its rows in them and nothing is kept twice while they are read.
"""

from dataclasses import replace
from typing import Final

import msgspec

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import CHOICE_BIAS, ExpertsSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Place, whole

USUAL: Final = ("gate_proj", "up_proj", "down_proj")


def experts_spec(
    config: ModelConfig, *, intermediate_size: int, renormalised: bool, shared_size: int = 0
) -> ExpertsSpec:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not name.

    Raises ModelError where the config lacks a size, or a token would go to more experts than there are.
    """
    num_experts, top_k = config.num_experts or config.num_local_experts, config.num_experts_per_tok
    if not num_experts or not top_k:
        raise ModelError(
            "config.json: a mixture of experts needs num_experts (or num_local_experts) and num_experts_per_tok"
        )
    if top_k > num_experts:
        raise ModelError(
            f"config.json: num_experts_per_tok {top_k} is more than the {num_experts} experts that there are"
        )
    step, dense = config.decoder_sparse_step, config.mlp_only_layers or ()
    return ExpertsSpec(
        layers=tuple((i + 1) % step == 0 and i not in dense for i in range(config.num_hidden_layers)),
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=intermediate_size,
        renormalised=renormalised,
        shared_size=shared_size,
    )


def deepseek_experts(config: ModelConfig, name: str, *, grouped: bool, sigmoid: bool) -> ExpertsSpec:
    """Of DeepSeek's kind: behind first_k_dense_replace layers without, with shared ones that have no gate.

    name: of the family, for errors. grouped, sigmoid: how they are chosen. Raises ModelError.
    """
    size, dense = config.moe_intermediate_size, tuple(range(config.first_k_dense_replace))
    if size is None:
        raise ModelError(f"config.json: {name} needs moe_intermediate_size")
    usual = msgspec.structs.replace(config, num_experts=config.n_routed_experts, mlp_only_layers=dense)
    shared = size * (config.n_shared_experts or 0)
    made = experts_spec(usual, intermediate_size=size, renormalised=config.norm_topk_prob, shared_size=shared)
    made = replace(made, shared_gate=False, scale=config.routed_scaling_factor)
    return _grouped(config, made, sigmoid=sigmoid) if grouped else made


def _grouped(config: ModelConfig, made: ExpertsSpec, *, sigmoid: bool) -> ExpertsSpec:
    """The same, chosen from the topk_group best of n_group groups; as sigmoids with a bias of the choice.

    A group counts as its best expert, of sigmoids as its best two. Raises ModelError where the groups are not equal, or
    have too few experts.
    """
    groups, top_groups = config.n_group or 1, config.topk_group or 1
    each, best = made.num_experts // groups, 2 if sigmoid else 1
    if (
        made.num_experts % groups
        or top_groups > groups
        or each * top_groups < made.top_k
        or (groups > 1 and each < best)
    ):
        raise ModelError(
            f"config.json: {made.top_k} of {made.num_experts} experts cannot be chosen from topk_group {top_groups} of"
            f" n_group {groups}"
        )
    return replace(made, sigmoid=sigmoid, choice_bias=sigmoid, groups=groups, top_groups=top_groups, group_best=best)


def expert_places(
    spec: DecoderSpec,
    *,
    block: str = "mlp",
    router: str = "gate",
    choice: str = "gate.e_score_correction_bias",
    names: tuple[str, ...] = USUAL,
    layer_name: str = "model.layers.{}.",
    shared: str = "shared_expert",
    stacked: bool = False,
) -> dict[str, Place]:
    """Of all layers with experts. choice: biases of the choice. names, shared: what gate, up and down of one
    expert (up and down where it has no gate), and of the shared one, are; shared is "" where that is none such.
    layer_name: what names in a layer begin with, as a format of its index.

    stacked: a checkpoint has a matrix of all experts as one tensor, gate and up in one, which
    `weights.stacked_experts` takes apart.
    """
    places = dict[str, Place]()
    for layer in range(spec.num_layers):
        experts = spec.experts_of(layer)
        if experts is None:
            continue
        theirs, ours = f"{layer_name.format(layer)}{block}.", f"layers.{layer}."
        places[f"{theirs}{router}.weight"] = whole(ours + "router", experts.num_experts, spec.hidden_size)
        if experts.choice_bias:
            places[theirs + choice] = whole(ours + CHOICE_BIAS, experts.num_experts)
        for expert in range(experts.num_experts):
            each, inner = f"{theirs}experts.{expert}.", experts.intermediate_size
            if stacked:
                both = f"{each}gate_up_proj.weight", f"{each}down_proj.weight"
                places |= gate_up_places(*both, ours + "experts.", expert, spec.hidden_size, inner)
                continue
            parts, width = tuple(f"{each}{name}.weight" for name in names), experts.latent_size or spec.hidden_size
            places |= _one_below_another(parts, ours + "experts.", expert, width, inner)
        if experts.shared_size and shared:
            parts = tuple(f"{theirs}{shared}.{name}.weight" for name in names)
            places |= _one_below_another(parts, ours + "shared.", 0, spec.hidden_size, experts.shared_size)
        if experts.shared_size and experts.shared_gate:
            places[theirs + "shared_expert_gate.weight"] = whole(ours + "shared_gate", 1, spec.hidden_size)
    return places


def _one_below_another(names: tuple[str, ...], ours: str, index: int, hidden: int, inner: int) -> dict[str, Place]:
    """Gate, up and down of the index-th of several, or up and down."""
    *first, down = names
    tensor = ours + ("gate_up.weight" if len(first) > 1 else "up.weight")
    return {
        name: Place(tensor=tensor, first_row=(len(first) * index + place) * inner, shape=(inner, hidden))
        for place, name in enumerate(first)
    } | {down: Place(tensor=ours + "down.weight", first_row=index * hidden, shape=(hidden, inner))}


def gate_up_places(gate_up: str, down: str, ours: str, index: int, hidden: int, inner: int) -> dict[str, Place]:
    """Of the index-th of several that lie one below the other; gate and up are one matrix, the gate first."""
    both = Place(tensor=ours + "gate_up.weight", first_row=2 * index * inner, shape=(2 * inner, hidden))
    of_down = Place(tensor=ours + "down.weight", first_row=index * hidden, shape=(hidden, inner))
    return {gate_up: replace(both, sections=(inner, inner)), down: of_down}
