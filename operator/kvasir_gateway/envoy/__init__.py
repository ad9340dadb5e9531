"""Envoy: what it is started with, the clusters that it watches, and what it says of itself."""
