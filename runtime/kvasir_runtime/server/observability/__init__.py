"""Prometheus metrics, traces, logs and load headers of one API process."""
