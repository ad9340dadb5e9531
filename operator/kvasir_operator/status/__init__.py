"""The status of a service: conditions that kstatus tools understand, counts, revisions, the address."""
