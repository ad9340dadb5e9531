"""A real node for the local cluster: kubelet, containerd and kube-proxy in a network namespace, with images of ours."""
