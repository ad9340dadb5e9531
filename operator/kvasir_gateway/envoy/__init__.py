"""Envoy: its bootstrap, the clusters that it discovers, and its admin interface."""
