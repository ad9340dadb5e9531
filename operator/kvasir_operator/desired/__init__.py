"""What ought to be there: revisions, pod templates and children of a service, from its spec and the settings."""
