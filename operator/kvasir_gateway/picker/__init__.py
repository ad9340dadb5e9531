"""The endpoint picker beside Envoy: one decision per request over ext-proc, ended by Envoy's access log."""
