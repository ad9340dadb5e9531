"""From hidden states to token ids: logits processors, grammar masks, sampling and logprobs."""
