"""Envoy: its bootstrap, the clusters file that it watches, and its admin interface."""
