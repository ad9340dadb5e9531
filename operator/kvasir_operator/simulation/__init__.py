"""The autoscaler's own code and re-implemented rules of its peers, driven by synthetic traffic on a queueing model of
pods. Used by `kvasir simulate` and by tests; nothing here reads a cluster or a clock."""
