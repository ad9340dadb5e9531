"""`/api`: the part of Ollama's API for chats, completions, embeddings and models."""
