"""`/api`: the part of Ollama's API that chats, generates and tells of models."""
