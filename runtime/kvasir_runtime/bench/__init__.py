"""Measures any OpenAI-compatible server as its clients see it: workloads, load, figures. Used by `kvasir bench`."""
