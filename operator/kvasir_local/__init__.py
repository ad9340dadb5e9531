"""A Kubernetes cluster of local processes: real control plane, process nodes, our manifests on top.

Everything below a *state directory* (`.kvasir/`) belongs to one cluster; several may run side by side on one machine.
"""
