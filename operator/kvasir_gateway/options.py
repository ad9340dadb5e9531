"""Options of `kvasir gateway` and its commands, declared once: flags, help, defaults and bounds."""

from pathlib import Path

from kvasir_api import names
from kvasir_api.option_fields import OptionsBase, option
from kvasir_gateway.choose import Strategy

DIRECTORY = "/run/kvasir-gateway"
CONFIG_DIR = "Directory shared with Envoy: its configuration and the sockets between the two."


class GatewayOptions(OptionsBase):
    """What picker and bootstrap configuration share."""

    config_dir: Path = option(Path(DIRECTORY), CONFIG_DIR)
    address: str = option("127.0.0.1", "IP address to listen on.")
    max_body_bytes: int = option(
        8 << 20, "Largest request body; a larger one is answered with 413.", unit="bytes", ge=1 << 10, le=1 << 28
    )


class PickerOptions(GatewayOptions):
    """Options of the endpoint picker."""

    state_port: int = option(names.PORT_GATEWAY_STATE, "Port of /state.", ge=1, le=65535)
    namespace: str = option("", "Serve the services of this namespace only. Default: all.", metavar="NAME")
    kubeconfig: str = option("", "Default: $KUBECONFIG, or the pod's service account.", metavar="FILE")
    strategy: Strategy = option(
        "cost",
        "How a replica is chosen: by cost in seconds and what it has cached, by fewest requests, or in turn.",
    )
    reading_period: float = option(
        0.5, "Time between two readings of the pods' /state.", unit="seconds", ge=0.05, le=60
    )


class BootstrapOptions(GatewayOptions):
    """Options of Envoy's bootstrap configuration."""

    port: int = option(names.PORT_GATEWAY, "Port for clients.", ge=1, le=65535)
    idle_timeout: int = option(3600, "Silence after which a stream is ended.", unit="seconds", ge=1, le=86_400)
    max_connections: int = option(20_000, "Connections of clients at once; further ones are refused.", ge=1, le=1 << 20)


class DrainOptions(OptionsBase):
    """Options of `kvasir gateway drain`."""

    config_dir: Path = option(Path(DIRECTORY), CONFIG_DIR)
    undo: bool = option(False, "Take requests again instead.")
