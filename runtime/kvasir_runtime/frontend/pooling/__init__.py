"""Pooling requests as the server and the offline API share them: fields, prompts, vectors."""
