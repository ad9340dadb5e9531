"""Options of `kvasir gateway` and its commands, declared once: flags, help, defaults and bounds."""

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from kvasir_api import names
from kvasir_api.option_fields import OptionsBase, option
from kvasir_api.served_names import RESERVE_MODEL_NAME, reserved_names
from kvasir_gateway.choose import Strategy
from kvasir_gateway.hold_queue import MAX_ANSWER_S, MAX_HOLD_S

DIRECTORY = "/run/kvasir-gateway"
CONFIG_DIR = "Directory shared with Envoy: its configuration and the sockets between the two."


class RelayOptions(OptionsBase):
    """Options of the relay."""

    config_dir: Path = option(Path(DIRECTORY), CONFIG_DIR)
    max_relayed_bytes: int = option(
        96 << 20,
        "What the relay keeps of all requests at once: their bodies, once more on the way to an external backend, and "
        "what it needs to go on with streams. Further bodies are answered with 429, and streams are passed on as they "
        "are. It takes four times as much memory while all are sent again.",
        unit="bytes",
        ge=1 << 10,
        le=1 << 34,
    )
    backends_dir: str = option(
        "",
        "Directory with a file NAME.json for each external backend: its address, its key, and the namespaces whose "
        "ModelRoutes may name it; read again when it changes. Default: there is none.",
        metavar="DIRECTORY",
    )


class GatewayOptions(OptionsBase):
    """What picker and bootstrap configuration share."""

    config_dir: Path = option(Path(DIRECTORY), CONFIG_DIR)
    address: str = option("127.0.0.1", "IP address to listen on; :: is every one, of IPv4 too.")
    max_body_bytes: int = option(
        8 << 20, "Largest request body; a larger one is answered with 413.", unit="bytes", ge=1 << 10, le=1 << 28
    )


PickerFailure = Literal["refuse", "least-request"]


class PickerOptions(GatewayOptions):
    """Options of the endpoint picker."""

    state_port: int = option(names.PORT_GATEWAY_STATE, "Port of /state.", ge=1, le=65535)
    namespace: str = option("", "Serve the services of this namespace only. Default: all.", metavar="NAME")
    gateway_namespace: str = option(
        "", "Where the other gateways are, with which this one chooses as one. Default: there is none.", metavar="NAME"
    )
    reserve_model_name: tuple[str, ...] = option((), RESERVE_MODEL_NAME, metavar="NAME=NAMESPACE")
    kubeconfig: str = option("", "Default: $KUBECONFIG, or the pod's service account.", metavar="FILE")
    strategy: Strategy = option(
        "cost",
        "How a replica is chosen: by cost in seconds and what it has cached, by fewest requests, or in turn.",
    )
    reading_period: float = option(
        0.5, "Time between two readings of the pods' /state.", unit="seconds", ge=0.05, le=60
    )
    audit_log: bool = option(
        False, "Write a line of JSON for each request to the standard output: who sent it, where it went, what it took."
    )
    timeout: int = option(
        3600,
        "How long a whole answer may take, waiting for a replica included, where no ModelRoute says so.",
        unit="seconds",
        ge=1,
        le=MAX_ANSWER_S,
    )
    endpoint_picker_port: int = option(
        0, "Port for proxies of others, whose InferencePools name this picker; 0 opens none.", ge=0, le=65535
    )
    endpoint_picker_tls_dir: str = option(
        "", "Directory with tls.crt and tls.key of that port. Default: plain text.", metavar="DIRECTORY"
    )
    hold_timeout: int = option(
        300,
        "How long a request waits for a replica of a service that has none; 0 holds no request.",
        unit="seconds",
        ge=0,
        le=MAX_HOLD_S - 60,
    )
    max_held_requests: int = option(1024, "Requests that wait at once.", ge=1, le=1 << 20)
    max_held_bytes: int = option(
        64 << 20,
        "Bodies of requests that wait at once; and of those that other proxies are sending at once.",
        unit="bytes",
        ge=1 << 10,
        le=1 << 34,
    )

    @model_validator(mode="after")
    def _reserves_names(self) -> Self:
        reserved_names(self.reserve_model_name)
        return self


class BootstrapOptions(GatewayOptions):
    """Options of Envoy's bootstrap configuration."""

    port: int = option(names.PORT_GATEWAY, "Port for clients.", ge=1, le=65535)
    idle_timeout: int = option(
        300,
        "Silence after which a stream of events is ended, also before its first token.",
        unit="seconds",
        ge=1,
        le=MAX_ANSWER_S,
    )
    max_connections: int = option(20_000, "Connections of clients at once; further ones are refused.", ge=1, le=1 << 20)
    max_heap_bytes: int = option(
        768 << 20,
        "Memory that Envoy has for bodies and streams; new requests are refused while 95 % are used. Its container "
        "needs a third more.",
        unit="bytes",
        ge=64 << 20,
        le=1 << 40,
    )
    tls_dir: str = option(
        "",
        "Directory with tls.crt and tls.key, read again when they are replaced: clients use HTTPS then. "
        "Default: plain HTTP.",
        metavar="DIRECTORY",
    )
    cors_origins: tuple[str, ...] = option(
        (),
        "Origin from whose pages browsers may send requests, such as https://chat.example.com; * for any; once for "
        "each. Default: none.",
        flag="--cors-origin",
        metavar="ORIGIN",
    )
    picker_failure: PickerFailure = option(
        "refuse",
        "Requests while the picker does not answer: refuse them, or send each to the ready replica of its model with "
        "the fewest requests, without limits, queue or cache in mind.",
    )


class DrainOptions(OptionsBase):
    """Options of `kvasir gateway drain`."""

    config_dir: Path = option(Path(DIRECTORY), CONFIG_DIR)
    undo: bool = option(False, "Take requests again instead.")
