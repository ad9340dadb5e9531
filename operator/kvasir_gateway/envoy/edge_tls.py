"""TLS of the clients' listener: the certificate is read from a directory, and again when it is replaced there.

Pure data. Envoy watches the directory, as the kubelet replaces a Secret's files: connections keep what they began with,
and a certificate that does not fit its key is rejected, so that the one before stays.
"""

from pathlib import PurePosixPath
from typing import Any, Final

Config = dict[str, Any]
SECRET: Final = "edge"
SECRET_FILE: Final = "tls.json"
CERTIFICATE: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"
"""Files of a Secret of type kubernetes.io/tls."""
TLS: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"


def transport_socket(directory: PurePosixPath) -> Config:
    """Of the listener. directory: with Envoy's files, of which SECRET_FILE is one."""
    source = {"resource_api_version": "V3", "path_config_source": {"path": str(directory / SECRET_FILE)}}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{TLS}.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "tls_certificate_sds_secret_configs": [{"name": SECRET, "sds_config": source}],
            },
        },
    }


def secret(tls_directory: PurePosixPath) -> Config:
    """Content of SECRET_FILE. tls_directory: has CERTIFICATE and PRIVATE_KEY."""
    certificate = {
        "certificate_chain": {"filename": str(tls_directory / CERTIFICATE)},
        "private_key": {"filename": str(tls_directory / PRIVATE_KEY)},
        "watched_directory": {"path": str(tls_directory)},
    }
    return {"resources": [{"@type": f"{TLS}.Secret", "name": SECRET, "tls_certificate": certificate}]}
