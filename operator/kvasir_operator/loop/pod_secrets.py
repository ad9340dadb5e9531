"""The Secrets that the operator makes for pods of a service. They are there before the pods that mount them."""

from collections.abc import Sequence

from kvasir_kube.kinds import DEPLOYMENT
from kvasir_operator.desired.node_group import is_group
from kvasir_operator.desired.template import speaks_tls
from kvasir_operator.diff import Write
from kvasir_operator.loop.node_keys import NodeKeys
from kvasir_operator.loop.pod_certificates import PodCertificates
from kvasir_operator.observed.service import Observed


class PodSecrets:
    """Certificates of pods that speak TLS, and keys of nodes."""

    def __init__(self, certificates: PodCertificates, node_keys: NodeKeys) -> None:
        self._certificates, self._node_keys = certificates, node_keys

    async def ensure(self, seen: Observed, writes: Sequence[Write]) -> None:
        """Those that pods of a service mount, its next ones too. Raises KubeError."""
        templates = [one.manifest["spec"]["template"] for one in writes if one.kind == DEPLOYMENT.kind and one.manifest]
        if any(map(speaks_tls, templates)):
            await self._certificates.ensure(seen.namespace)
        if is_group(seen) or seen.node_sets:
            await self._node_keys.ensure(seen.namespace)
