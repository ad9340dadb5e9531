"""Commands beside the operator itself: what the autoscaler did, would have done, and why."""
