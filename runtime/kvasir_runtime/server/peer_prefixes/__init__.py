"""What other replicas are asked most: computed by one that starts, and fetched from one that leaves."""
