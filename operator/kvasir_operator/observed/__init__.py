"""What is there: the cluster's objects and the pods' readings as frozen values, parsed once for all decisions."""
