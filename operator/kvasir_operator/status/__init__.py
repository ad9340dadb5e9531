"""What the operator says about a service: conditions that kstatus tools understand, counts, revisions, the address."""
