"""Embeddings, reranking and scores: routes and responses."""
