"""The endpoint picker beside Envoy: one decision per request over ext-proc, tickets closed by Envoy's access log."""
