"""The HTTP APIs that the server speaks, one folder each: protocol, routes, serialize."""
