"""Decode steps captured as CUDA graphs: which sizes are captured, capture, replay."""
