"""Measures any OpenAI-compatible server as its clients see it. Used by `kvasir bench`."""
