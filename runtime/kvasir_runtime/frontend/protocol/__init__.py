"""Fields of a request: types, bounds, and what is refused by name."""
