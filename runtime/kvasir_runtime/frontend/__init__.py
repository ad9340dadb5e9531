"""Text and request work that the server, the offline API and the benchmark share; it knows no HTTP framework."""
