import datetime

from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SocketAddress(_message.Message):
    __slots__ = ("address", "port_value")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_VALUE_FIELD_NUMBER: _ClassVar[int]
    address: str
    port_value: int
    def __init__(self, address: _Optional[str] = ..., port_value: _Optional[int] = ...) -> None: ...

class Address(_message.Message):
    __slots__ = ("socket_address",)
    SOCKET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    socket_address: SocketAddress
    def __init__(self, socket_address: _Optional[_Union[SocketAddress, _Mapping]] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: Address
    def __init__(self, address: _Optional[_Union[Address, _Mapping]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("filter_metadata",)
    class FilterMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Struct
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...
    FILTER_METADATA_FIELD_NUMBER: _ClassVar[int]
    filter_metadata: _containers.MessageMap[str, _struct_pb2.Struct]
    def __init__(self, filter_metadata: _Optional[_Mapping[str, _struct_pb2.Struct]] = ...) -> None: ...

class LbEndpoint(_message.Message):
    __slots__ = ("endpoint", "metadata")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    endpoint: Endpoint
    metadata: Metadata
    def __init__(self, endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ...) -> None: ...

class LocalityLbEndpoints(_message.Message):
    __slots__ = ("lb_endpoints", "priority")
    LB_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    lb_endpoints: _containers.RepeatedCompositeFieldContainer[LbEndpoint]
    priority: int
    def __init__(self, lb_endpoints: _Optional[_Iterable[_Union[LbEndpoint, _Mapping]]] = ..., priority: _Optional[int] = ...) -> None: ...

class ClusterLoadAssignment(_message.Message):
    __slots__ = ("cluster_name", "endpoints")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    endpoints: _containers.RepeatedCompositeFieldContainer[LocalityLbEndpoints]
    def __init__(self, cluster_name: _Optional[str] = ..., endpoints: _Optional[_Iterable[_Union[LocalityLbEndpoints, _Mapping]]] = ...) -> None: ...

class CircuitBreakers(_message.Message):
    __slots__ = ("thresholds",)
    class Thresholds(_message.Message):
        __slots__ = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
        MAX_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
        MAX_PENDING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
        MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
        MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
        max_connections: _wrappers_pb2.UInt32Value
        max_pending_requests: _wrappers_pb2.UInt32Value
        max_requests: _wrappers_pb2.UInt32Value
        max_retries: _wrappers_pb2.UInt32Value
        def __init__(self, max_connections: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., max_pending_requests: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., max_requests: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., max_retries: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ...) -> None: ...
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    thresholds: _containers.RepeatedCompositeFieldContainer[CircuitBreakers.Thresholds]
    def __init__(self, thresholds: _Optional[_Iterable[_Union[CircuitBreakers.Thresholds, _Mapping]]] = ...) -> None: ...

class OutlierDetection(_message.Message):
    __slots__ = ("interval", "base_ejection_time", "max_ejection_percent", "enforcing_consecutive_5xx", "enforcing_success_rate", "enforcing_consecutive_gateway_failure", "split_external_local_origin_errors", "consecutive_local_origin_failure", "enforcing_consecutive_local_origin_failure", "enforcing_local_origin_success_rate", "enforcing_failure_percentage")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    BASE_EJECTION_TIME_FIELD_NUMBER: _ClassVar[int]
    MAX_EJECTION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    ENFORCING_CONSECUTIVE_5XX_FIELD_NUMBER: _ClassVar[int]
    ENFORCING_SUCCESS_RATE_FIELD_NUMBER: _ClassVar[int]
    ENFORCING_CONSECUTIVE_GATEWAY_FAILURE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_EXTERNAL_LOCAL_ORIGIN_ERRORS_FIELD_NUMBER: _ClassVar[int]
    CONSECUTIVE_LOCAL_ORIGIN_FAILURE_FIELD_NUMBER: _ClassVar[int]
    ENFORCING_CONSECUTIVE_LOCAL_ORIGIN_FAILURE_FIELD_NUMBER: _ClassVar[int]
    ENFORCING_LOCAL_ORIGIN_SUCCESS_RATE_FIELD_NUMBER: _ClassVar[int]
    ENFORCING_FAILURE_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    base_ejection_time: _duration_pb2.Duration
    max_ejection_percent: _wrappers_pb2.UInt32Value
    enforcing_consecutive_5xx: _wrappers_pb2.UInt32Value
    enforcing_success_rate: _wrappers_pb2.UInt32Value
    enforcing_consecutive_gateway_failure: _wrappers_pb2.UInt32Value
    split_external_local_origin_errors: bool
    consecutive_local_origin_failure: _wrappers_pb2.UInt32Value
    enforcing_consecutive_local_origin_failure: _wrappers_pb2.UInt32Value
    enforcing_local_origin_success_rate: _wrappers_pb2.UInt32Value
    enforcing_failure_percentage: _wrappers_pb2.UInt32Value
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., base_ejection_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_ejection_percent: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., enforcing_consecutive_5xx: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., enforcing_success_rate: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., enforcing_consecutive_gateway_failure: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., split_external_local_origin_errors: _Optional[bool] = ..., consecutive_local_origin_failure: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., enforcing_consecutive_local_origin_failure: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., enforcing_local_origin_success_rate: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., enforcing_failure_percentage: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ...) -> None: ...

class TcpKeepalive(_message.Message):
    __slots__ = ("keepalive_probes", "keepalive_time", "keepalive_interval")
    KEEPALIVE_PROBES_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_TIME_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    keepalive_probes: _wrappers_pb2.UInt32Value
    keepalive_time: _wrappers_pb2.UInt32Value
    keepalive_interval: _wrappers_pb2.UInt32Value
    def __init__(self, keepalive_probes: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., keepalive_time: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ..., keepalive_interval: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ...) -> None: ...

class UpstreamConnectionOptions(_message.Message):
    __slots__ = ("tcp_keepalive",)
    TCP_KEEPALIVE_FIELD_NUMBER: _ClassVar[int]
    tcp_keepalive: TcpKeepalive
    def __init__(self, tcp_keepalive: _Optional[_Union[TcpKeepalive, _Mapping]] = ...) -> None: ...

class SocketOption(_message.Message):
    __slots__ = ("description", "level", "name", "int_value")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    description: str
    level: int
    name: int
    int_value: int
    def __init__(self, description: _Optional[str] = ..., level: _Optional[int] = ..., name: _Optional[int] = ..., int_value: _Optional[int] = ...) -> None: ...

class BindConfig(_message.Message):
    __slots__ = ("socket_options",)
    SOCKET_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    socket_options: _containers.RepeatedCompositeFieldContainer[SocketOption]
    def __init__(self, socket_options: _Optional[_Iterable[_Union[SocketOption, _Mapping]]] = ...) -> None: ...

class TypedExtensionConfig(_message.Message):
    __slots__ = ("name", "typed_config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPED_CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    typed_config: _any_pb2.Any
    def __init__(self, name: _Optional[str] = ..., typed_config: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...

class LoadBalancingPolicy(_message.Message):
    __slots__ = ("policies",)
    class Policy(_message.Message):
        __slots__ = ("typed_extension_config",)
        TYPED_EXTENSION_CONFIG_FIELD_NUMBER: _ClassVar[int]
        typed_extension_config: TypedExtensionConfig
        def __init__(self, typed_extension_config: _Optional[_Union[TypedExtensionConfig, _Mapping]] = ...) -> None: ...
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[LoadBalancingPolicy.Policy]
    def __init__(self, policies: _Optional[_Iterable[_Union[LoadBalancingPolicy.Policy, _Mapping]]] = ...) -> None: ...

class OverrideHost(_message.Message):
    __slots__ = ("override_host_sources", "fallback_policy")
    class OverrideHostSource(_message.Message):
        __slots__ = ("header",)
        HEADER_FIELD_NUMBER: _ClassVar[int]
        header: str
        def __init__(self, header: _Optional[str] = ...) -> None: ...
    OVERRIDE_HOST_SOURCES_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_POLICY_FIELD_NUMBER: _ClassVar[int]
    override_host_sources: _containers.RepeatedCompositeFieldContainer[OverrideHost.OverrideHostSource]
    fallback_policy: LoadBalancingPolicy
    def __init__(self, override_host_sources: _Optional[_Iterable[_Union[OverrideHost.OverrideHostSource, _Mapping]]] = ..., fallback_policy: _Optional[_Union[LoadBalancingPolicy, _Mapping]] = ...) -> None: ...

class HttpProtocolOptions(_message.Message):
    __slots__ = ("common_http_protocol_options", "explicit_http_config")
    class CommonOptions(_message.Message):
        __slots__ = ("idle_timeout",)
        IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
        idle_timeout: _duration_pb2.Duration
        def __init__(self, idle_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
    class Http1Options(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class ExplicitHttpConfig(_message.Message):
        __slots__ = ("http_protocol_options",)
        HTTP_PROTOCOL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
        http_protocol_options: HttpProtocolOptions.Http1Options
        def __init__(self, http_protocol_options: _Optional[_Union[HttpProtocolOptions.Http1Options, _Mapping]] = ...) -> None: ...
    COMMON_HTTP_PROTOCOL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_HTTP_CONFIG_FIELD_NUMBER: _ClassVar[int]
    common_http_protocol_options: HttpProtocolOptions.CommonOptions
    explicit_http_config: HttpProtocolOptions.ExplicitHttpConfig
    def __init__(self, common_http_protocol_options: _Optional[_Union[HttpProtocolOptions.CommonOptions, _Mapping]] = ..., explicit_http_config: _Optional[_Union[HttpProtocolOptions.ExplicitHttpConfig, _Mapping]] = ...) -> None: ...

class TransportSocket(_message.Message):
    __slots__ = ("name", "typed_config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPED_CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    typed_config: _any_pb2.Any
    def __init__(self, name: _Optional[str] = ..., typed_config: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("name", "type", "connect_timeout", "circuit_breakers", "outlier_detection", "upstream_bind_config", "upstream_connection_options", "load_assignment", "typed_extension_protocol_options", "load_balancing_policy", "transport_socket_matches")
    class DiscoveryType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATIC: _ClassVar[Cluster.DiscoveryType]
    STATIC: Cluster.DiscoveryType
    class TransportSocketMatch(_message.Message):
        __slots__ = ("name", "match", "transport_socket")
        NAME_FIELD_NUMBER: _ClassVar[int]
        MATCH_FIELD_NUMBER: _ClassVar[int]
        TRANSPORT_SOCKET_FIELD_NUMBER: _ClassVar[int]
        name: str
        match: _struct_pb2.Struct
        transport_socket: TransportSocket
        def __init__(self, name: _Optional[str] = ..., match: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., transport_socket: _Optional[_Union[TransportSocket, _Mapping]] = ...) -> None: ...
    class TypedExtensionProtocolOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _any_pb2.Any
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONNECT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_BREAKERS_FIELD_NUMBER: _ClassVar[int]
    OUTLIER_DETECTION_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_BIND_CONFIG_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_CONNECTION_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    LOAD_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    TYPED_EXTENSION_PROTOCOL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    LOAD_BALANCING_POLICY_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_SOCKET_MATCHES_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: Cluster.DiscoveryType
    connect_timeout: _duration_pb2.Duration
    circuit_breakers: CircuitBreakers
    outlier_detection: OutlierDetection
    upstream_bind_config: BindConfig
    upstream_connection_options: UpstreamConnectionOptions
    load_assignment: ClusterLoadAssignment
    typed_extension_protocol_options: _containers.MessageMap[str, _any_pb2.Any]
    load_balancing_policy: LoadBalancingPolicy
    transport_socket_matches: _containers.RepeatedCompositeFieldContainer[Cluster.TransportSocketMatch]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[Cluster.DiscoveryType, str]] = ..., connect_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., circuit_breakers: _Optional[_Union[CircuitBreakers, _Mapping]] = ..., outlier_detection: _Optional[_Union[OutlierDetection, _Mapping]] = ..., upstream_bind_config: _Optional[_Union[BindConfig, _Mapping]] = ..., upstream_connection_options: _Optional[_Union[UpstreamConnectionOptions, _Mapping]] = ..., load_assignment: _Optional[_Union[ClusterLoadAssignment, _Mapping]] = ..., typed_extension_protocol_options: _Optional[_Mapping[str, _any_pb2.Any]] = ..., load_balancing_policy: _Optional[_Union[LoadBalancingPolicy, _Mapping]] = ..., transport_socket_matches: _Optional[_Iterable[_Union[Cluster.TransportSocketMatch, _Mapping]]] = ...) -> None: ...

class DataSource(_message.Message):
    __slots__ = ("filename",)
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    filename: str
    def __init__(self, filename: _Optional[str] = ...) -> None: ...

class StringMatcher(_message.Message):
    __slots__ = ("exact",)
    EXACT_FIELD_NUMBER: _ClassVar[int]
    exact: str
    def __init__(self, exact: _Optional[str] = ...) -> None: ...

class SubjectAltNameMatcher(_message.Message):
    __slots__ = ("san_type", "matcher")
    class SanType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SAN_TYPE_UNSPECIFIED: _ClassVar[SubjectAltNameMatcher.SanType]
        DNS: _ClassVar[SubjectAltNameMatcher.SanType]
    SAN_TYPE_UNSPECIFIED: SubjectAltNameMatcher.SanType
    DNS: SubjectAltNameMatcher.SanType
    SAN_TYPE_FIELD_NUMBER: _ClassVar[int]
    MATCHER_FIELD_NUMBER: _ClassVar[int]
    san_type: SubjectAltNameMatcher.SanType
    matcher: StringMatcher
    def __init__(self, san_type: _Optional[_Union[SubjectAltNameMatcher.SanType, str]] = ..., matcher: _Optional[_Union[StringMatcher, _Mapping]] = ...) -> None: ...

class CertificateValidationContext(_message.Message):
    __slots__ = ("trusted_ca", "match_typed_subject_alt_names")
    TRUSTED_CA_FIELD_NUMBER: _ClassVar[int]
    MATCH_TYPED_SUBJECT_ALT_NAMES_FIELD_NUMBER: _ClassVar[int]
    trusted_ca: DataSource
    match_typed_subject_alt_names: _containers.RepeatedCompositeFieldContainer[SubjectAltNameMatcher]
    def __init__(self, trusted_ca: _Optional[_Union[DataSource, _Mapping]] = ..., match_typed_subject_alt_names: _Optional[_Iterable[_Union[SubjectAltNameMatcher, _Mapping]]] = ...) -> None: ...

class TlsParameters(_message.Message):
    __slots__ = ("tls_minimum_protocol_version", "tls_maximum_protocol_version")
    class TlsProtocol(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TLS_AUTO: _ClassVar[TlsParameters.TlsProtocol]
        TLSv1_2: _ClassVar[TlsParameters.TlsProtocol]
        TLSv1_3: _ClassVar[TlsParameters.TlsProtocol]
    TLS_AUTO: TlsParameters.TlsProtocol
    TLSv1_2: TlsParameters.TlsProtocol
    TLSv1_3: TlsParameters.TlsProtocol
    TLS_MINIMUM_PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TLS_MAXIMUM_PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    tls_minimum_protocol_version: TlsParameters.TlsProtocol
    tls_maximum_protocol_version: TlsParameters.TlsProtocol
    def __init__(self, tls_minimum_protocol_version: _Optional[_Union[TlsParameters.TlsProtocol, str]] = ..., tls_maximum_protocol_version: _Optional[_Union[TlsParameters.TlsProtocol, str]] = ...) -> None: ...

class CommonTlsContext(_message.Message):
    __slots__ = ("tls_params", "validation_context")
    TLS_PARAMS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    tls_params: TlsParameters
    validation_context: CertificateValidationContext
    def __init__(self, tls_params: _Optional[_Union[TlsParameters, _Mapping]] = ..., validation_context: _Optional[_Union[CertificateValidationContext, _Mapping]] = ...) -> None: ...

class UpstreamTlsContext(_message.Message):
    __slots__ = ("common_tls_context", "sni")
    COMMON_TLS_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SNI_FIELD_NUMBER: _ClassVar[int]
    common_tls_context: CommonTlsContext
    sni: str
    def __init__(self, common_tls_context: _Optional[_Union[CommonTlsContext, _Mapping]] = ..., sni: _Optional[str] = ...) -> None: ...
