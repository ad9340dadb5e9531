"""Embeddings, reranking and scores: prompts that are computed and answered with vectors or numbers in place of text."""
