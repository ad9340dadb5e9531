"""The process node: a small kubelet stand-in that runs bound pods as local processes.

`python -m kvasir_local.node` registers a Node, watches the pods bound to it and runs their containers as processes in
private mount, process and host-name namespaces, each pod on its own 127.x.y.z address. `rules` decides (pure), the
other modules do.

What it promises, and what it does not:
- A pod field is honoured, relaxed (accepted, not enforced; `rules/supported_fields.py` lists each with its reason) or
  refused: a field that the table does not know ends the pod as Failed with reason UnsupportedField, so nothing is
  ignored silently.
- No orphan: the kernel kills every process of a container when its supervisor dies, and every supervisor when the node
  dies.
- A restart of the node process is therefore like a reboot of a machine: pods keep their address and volumes, running
  containers count as ended with exit code 137 (reason ContainerStatusUnknown) and start again as restartPolicy says.
  Nothing is adopted, so nothing can run twice; a pod deleted meanwhile is already dead and only its directory is
  removed.
- The host's files are visible to containers, read-only; /tmp, /run, /dev and the mounts are the container's own.
- There is no cluster network: Service addresses and names do not resolve; use pod addresses (all of 127.0.0.0/8 is this
  machine).
"""
