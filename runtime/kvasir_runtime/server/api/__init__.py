"""The HTTP APIs of the server, one folder each: protocol, routes, serialize."""
