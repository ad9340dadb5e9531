"""Connections between the hosts (nodes) that compute one model: how they join, frames, heartbeats. No torch."""
