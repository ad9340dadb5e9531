"""The operator's calls to pods are signed, and pods have the keys to verify them: from the template to a drain."""

import asyncio

from fakes import virtual_loop
from fakes.cluster import FakeCluster
from fakes.manifests import pod
from fakes.operator_bench import Bench, LoopBench
from fakes.virtual_loop import elapse
from kvasir_api import names
from kvasir_api.http_apis import new_instance
from kvasir_api.ops_tokens import Verifier
from kvasir_api.state import RuntimeState
from kvasir_kube.kinds import DEPLOYMENT, POD, SECRET, annotations
from kvasir_kube.pod_tls import PodTls
from kvasir_operator.desired.signing_keys import OVERLAP_S, ROTATED_AFTER_S
from kvasir_operator.loop.operator import Operator
from kvasir_operator.observed.settings import OperatorSettings

TAG = new_instance("default/tiny")[8:]
SECRET_OBJECT = {"metadata": {"namespace": names.SYSTEM_NAMESPACE, "name": names.SIGNING_SECRET}}


class SigningBench(Bench):
    """As an installation runs it, with the Secret as it comes."""

    def started(self) -> Operator:
        return Operator(
            self.cluster,
            self.reader,  # type: ignore[arg-type]
            settings=OperatorSettings(model_dirs=("/srv",), signs_calls=True),
            instance="test",
            clock=self.clock,
        )

    async def installed(self, *, replicas: int) -> None:
        """A service whose pods run; p0 is of a release without the guard."""
        await self.cluster.put(SECRET, SECRET_OBJECT)
        await self.refresh()
        await self.put_service(replicas=replicas)
        await self.turn()
        (workload,) = self.cluster.objects[DEPLOYMENT.plural].values()
        template = workload["spec"]["template"]["spec"]
        for number in range(replicas):
            ip, revision = f"10.0.0.{number + 1}", workload["metadata"]["labels"][names.LABEL_REVISION]
            made = pod(f"p{number}", revision=revision, ip=ip)
            if number:
                made["spec"] |= {"volumes": template["volumes"]}
            await self.cluster.put(POD, made)
            self.say(number, instance=f"0000000{number}{TAG}")
        await self.turn()

    async def refresh(self) -> bool:
        """As its own loop does."""
        assert self.operator._signing is not None
        return await self.operator._signing.refresh()

    @property
    def public(self) -> str:
        return self.operator._signing.public

    def given(self, number: int) -> str:
        return annotations(self.cluster.stored(POD, "default", f"p{number}")).get(names.ANNOTATION_OPS_KEYS, "")


class Distant(FakeCluster):
    """Whose answers take a while."""

    async def get(self, kind, namespace, name):
        await asyncio.sleep(0.05)
        return await super().get(kind, namespace, name)


async def test_pods_have_the_keys_by_an_annotation_and_a_file_of_it():
    bench = SigningBench()
    await bench.installed(replicas=2)
    (workload,) = bench.cluster.objects[DEPLOYMENT.plural].values()
    template = workload["spec"]["template"]["spec"]
    (container,) = template["containers"]
    assert container["args"][container["args"].index("--ops-key-file") + 1] == "/ops-keys"
    assert {"name": "ops-keys", "mountPath": "/ops-keys", "readOnly": True} in container["volumeMounts"]
    (volume,) = [volume for volume in template["volumes"] if volume["name"] == "ops-keys"]
    field = {"fieldPath": "metadata.annotations['serving.kvasir.dev/ops-keys']"}
    assert volume["downwardAPI"] == {"items": [{"path": "public", "fieldRef": field}]}
    assert names.ANNOTATION_OPS_KEYS not in str(workload["spec"]["template"]["metadata"]), "a rotation rolls no pod"
    assert bench.given(1) == bench.public != ""
    assert bench.given(0) == "", "it reads none"
    bench.writes()
    await bench.turn()
    assert bench.writes() == []
    assert await bench.restarted() == []


async def test_a_rotation_reaches_every_pod_and_restarts_none():
    bench = SigningBench()
    await bench.installed(replicas=3)
    before = bench.public
    bench.writes()
    bench.clock.advance(ROTATED_AFTER_S)
    assert await bench.refresh()
    await bench.turn()
    assert bench.given(1) == bench.given(2) == bench.public
    assert bench.public.startswith(before)
    assert "deployments" not in {plural for _, plural in bench.writes()}
    bench.clock.advance(2 * OVERLAP_S)
    await bench.refresh()
    await bench.turn()
    assert bench.given(1) == bench.public
    assert before not in bench.public


async def test_a_pod_is_given_its_keys_once_while_the_watches_are_late():
    bench = SigningBench()
    await bench.installed(replicas=2)
    bench.writes()
    bench.clock.advance(ROTATED_AFTER_S)
    await bench.refresh()
    for _ in range(3):  # no list and no watch: as just after a restart of the API server
        await bench.operator.reconciler.reconcile(("default", "tiny"))
    assert [verb for verb, plural in bench.writes() if plural == POD.plural] == ["merge"]
    assert bench.given(1) == bench.public


async def test_a_drain_is_signed_for_the_process_that_leaves():
    bench = SigningBench()
    await bench.installed(replicas=2)
    bench.say(1, instance=f"00000001{TAG}", running=1)
    bench.say(0, instance=f"00000000{TAG}", running=50, pinned=900)
    await bench.put_service(replicas=1)
    await bench.turn()
    assert bench.reader.drains[-1] == ("http://10.0.0.2:8001", True)
    verifier = Verifier(f"00000001{TAG}", wall=bench.clock.wall)
    assert verifier.refusal(bench.reader.signed[-1], "POST", "/drain", b"", bench.given(1).splitlines()) == ""


async def test_without_the_secret_pods_run_and_are_given_no_key():
    bench = SigningBench()
    await bench.put_service(replicas=1)
    await bench.turn()
    (workload,) = bench.cluster.objects[DEPLOYMENT.plural].values()
    made = pod("p0", revision=workload["metadata"]["labels"][names.LABEL_REVISION], ready=True, ip="10.0.0.1")
    made["spec"]["volumes"] = workload["spec"]["template"]["spec"]["volumes"]
    await bench.cluster.put(POD, made)
    bench.say(0)
    await bench.turn()
    assert bench.given(0) == ""
    assert bench.status()["readyReplicas"] == 1


def test_the_first_scrape_after_a_takeover_reads_pods_that_speak_tls():
    async def story():
        bench = LoopBench(Distant())
        await bench.cluster.put(SECRET, SECRET_OBJECT)
        bench.operator = bench.started(signs_calls=True, pod_tls=True)
        await bench.put_service()
        async with bench.running():
            await elapse(5)
        (workload,) = bench.cluster.objects[DEPLOYMENT.plural].values()
        assert bench.cluster.stored(SECRET, "default", names.POD_TLS_SECRET)
        revision = workload["metadata"]["labels"][names.LABEL_REVISION]
        made = pod("p0", revision=revision, ready=True, annotations={names.ANNOTATION_TLS: "true"})
        await bench.cluster.put(POD, made)
        bench.reader.says["https://10.0.0.1:8001#tiny.default.svc"] = RuntimeState(phase="ready")
        bench.reader.tls = PodTls()
        bench.operator = bench.started(signs_calls=True, pod_tls=True)
        async with bench.running():
            await elapse(10)
        assert bench.reader.unverified == 0
        assert bench.reason() == "AllReplicasReady"

    virtual_loop.run(story())
