"""Envoy's clusters over its stream of delta discovery: those that changed are sent, and Envoy confirms them.

SyncLoops publishes the clusters, ExtProcServer serves the stream at its socket. Before the first are published nothing
is sent: the clusters of an earlier picker stay in use. An Envoy that connects has the versions of its clusters in its
first message. One response at a time is on its way; the next one has all that changed in the meantime.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2

from kvasir_gateway.envoy.clusters import CLUSTER_TYPE, EncodedCluster
from kvasir_gateway.proto import discovery_pb2 as pb

LOG = logging.getLogger(__name__)
SERVICE = "envoy.service.cluster.v3.ClusterDiscoveryService"


class HeldClusters:
    """What one Envoy has. usable: names of clusters that it has with a pod's address, in whatever version."""

    def __init__(self, versions: Mapping[str, str], published: Mapping[str, EncodedCluster]) -> None:
        self._versions = dict(versions)
        self.usable = {
            name for name, one in published.items() if one.reachable and self._versions.get(name) == one.version
        }

    def differences(self, published: Mapping[str, EncodedCluster]) -> tuple[dict[str, EncodedCluster], list[str]]:
        """The clusters to update, and the names of those to remove."""
        versions = self._versions
        updated = {name: one for name, one in published.items() if versions.get(name) != one.version}
        return updated, [name for name in versions if name not in published]

    def take(self, name: str, sent: EncodedCluster | None, *, accepted: bool) -> None:
        """Envoy has answered. sent: None for a cluster that was removed. One that it rejected is not sent again before
        it changes; Envoy keeps what it had."""
        if sent is None:
            self._versions.pop(name, None)
            self.usable.discard(name)
            return
        self._versions[name] = sent.version
        if accepted and sent.reachable:
            self.usable.add(name)
        elif accepted:
            self.usable.discard(name)


class ClusterDiscovery:
    """accepted: takes the names of the clusters through which Envoy reaches a pod, whenever they may be others.

    confirmed: whether Envoy has answered to all that was published when it connected.
    """

    def __init__(self, accepted: Callable[[frozenset[str]], None]) -> None:
        self.confirmed = False
        self._accepted = accepted
        self._published: Mapping[str, EncodedCluster] = {}
        self._changed, self._first = asyncio.Event(), asyncio.Event()
        self._newest: HeldClusters | None = None
        self._responses = 0

    def publish(self, clusters: Mapping[str, EncodedCluster]) -> None:
        """These clusters and no others, by name, from now on."""
        self._published = clusters
        self._first.set()
        self._changed.set()
        self._changed = asyncio.Event()

    def handler(self) -> Any:
        """The gRPC service."""
        method = grpc.stream_stream_rpc_method_handler(
            self._deltas,
            request_deserializer=pb.DeltaDiscoveryRequest.FromString,
            response_serializer=pb.DeltaDiscoveryResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"DeltaClusters": method})

    async def _deltas(self, _requests: Any, stream: Any) -> None:
        """One Envoy. It gets a first response also where nothing differs, since it awaits one before it listens."""
        with contextlib.suppress(EOFError):
            first = await _read(stream)
            await self._first.wait()
            held = HeldClusters(first.initial_resource_versions, self._published)
            self._newest = held
            self._report(held, confirmed=False)
            await self._send(stream, held, *held.differences(self._published))
            while True:
                changed = self._changed
                updated, removed = held.differences(self._published)
                if updated or removed:
                    await self._send(stream, held, updated, removed)
                self._report(held, confirmed=True)
                await changed.wait()

    async def _send(
        self, stream: Any, held: HeldClusters, updated: Mapping[str, EncodedCluster], removed: Iterable[str] = ()
    ) -> None:
        """Send these, and await Envoy's answer. Where it rejects one of several each is sent again by itself, so that
        the others count."""
        self._responses += 1
        nonce = str(self._responses)
        await stream.write(
            pb.DeltaDiscoveryResponse(
                type_url=CLUSTER_TYPE,
                nonce=nonce,
                resources=[_resource(name, one) for name, one in updated.items()],
                removed_resources=removed,
            )
        )
        answer = await _read(stream)
        while answer.response_nonce != nonce:
            answer = await _read(stream)
        for name in removed:
            held.take(name, None, accepted=True)
        reason = answer.error_detail.message if answer.HasField("error_detail") else ""
        if reason and len(updated) > 1:
            for name, one in updated.items():
                await self._send(stream, held, {name: one})
            return
        if reason:
            LOG.error("Envoy rejected cluster %s: %s", ", ".join(updated), reason)
        for name, one in updated.items():
            held.take(name, one, accepted=not reason)

    def _report(self, held: HeldClusters, *, confirmed: bool) -> None:
        """Another Envoy may have connected in the meantime."""
        if held is self._newest:
            self.confirmed = confirmed
            self._accepted(frozenset(name for name in held.usable if self._reaches(name)))

    def _reaches(self, name: str) -> bool:
        one = self._published.get(name)
        return one is not None and one.reachable


def _resource(name: str, one: EncodedCluster) -> pb.Resource:
    content = any_pb2.Any(type_url=CLUSTER_TYPE, value=one.content)
    return pb.Resource(name=name, version=one.version, resource=content)


async def _read(stream: Any) -> pb.DeltaDiscoveryRequest:
    """The next message of Envoy; raises EOFError when there is none any more."""
    message: pb.DeltaDiscoveryRequest = await stream.read()
    if message is grpc.aio.EOF:
        raise EOFError
    return message
