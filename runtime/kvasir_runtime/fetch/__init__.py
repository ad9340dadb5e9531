"""Models in buckets, registries and archives: what is there under a uri, and its files on this machine's disk.

Called by `source` and by commands. Imports no torch; boto3 and urllib3 only when they are needed.
"""
