"""The demo: a tiny model of our own, a load, and the walk through the whole product that `make demo` shows."""
