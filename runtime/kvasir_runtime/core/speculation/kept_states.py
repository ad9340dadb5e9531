"""How many drafts a chunk of a model with a state may have. Pure arithmetic, for the scheduler."""


def most_drafts(computed: int, num_tokens: int, block_size: int) -> int:
    """Drafts that a chunk may have which computes the tokens from computed on: it ends in the block that it begins in,
    and before the border, where the state is kept for others, as of tokens that are certain. Of several blocks a chunk
    has the last alone, in which a shorter one behind a wrong draft would not end.
    """
    return max(0, block_size - 1 - computed % block_size - (num_tokens - computed))
