"""How the heads of attention are divided among ranks that compute each layer together. Pure."""

from kvasir_api.expert_layers import divided


def part(heads: int, kv_heads: int, *, ranks: int) -> tuple[int, int]:
    """Heads and key heads of each rank; where there are fewer key heads than ranks, several share one. Raises ValueError."""
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(f"{kv_heads} key heads can neither be divided among {ranks} ranks nor be shared by them")
    return divided(heads, ranks, "attention heads"), max(kv_heads // ranks, 1)
