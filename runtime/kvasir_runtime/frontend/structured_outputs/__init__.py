"""Structured outputs: the fields that ask for them, the grammar that follows, and its validation."""
