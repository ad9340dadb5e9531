"""Changes of the installation go through a fleet a few services at a time, with the whole operator in virtual time."""

import contextlib

import pytest

from fakes import virtual_loop
from fakes.cluster import FakeCluster
from fakes.manifests import pod, service
from fakes.operator_bench import LoopBench
from fakes.virtual_loop import elapse
from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_kube.kinds import ACCELERATOR_CLASS, DEPLOYMENT, INFERENCE_SERVICE, POD
from kvasir_operator.handlers import store_events

SERVICES = [f"s{number}" for number in range(4)]
FILE = {"model": {"uri": "file:///srv/tiny", "inspect": "Never"}}
ON_CLASS = {**FILE, "resources": {"accelerator": {"count": 1, "classes": ["small"]}}}
FOLLOWS = {**FILE, "runtimeVersion": "Follow"}
STEP_S = 5.0


class Fleet(LoopBench):
    """Services whose pods are made and removed as Deployments say. broken: images with which no pod becomes ready.

    most: services that were seen with pods of two revisions, or without a ready pod, at one time.
    """

    def __init__(self, **settings):
        super().__init__(FakeCluster())
        self.settings, self.broken, self.most, self.pods = settings, set(), 0, 0
        self.start_again(**settings)

    def start_again(self, **settings):
        self.operator = self.started(**settings)
        self.hear = store_events(self.operator.store, self.operator.workqueue, self.operator.resync)

    async def fill(self, spec, services=SERVICES):
        for name in services:
            await self.cluster.put(INFERENCE_SERVICE, service(name, **spec))

    async def put_class(self, node, name="small", **more):
        spec = {"memory": "80Gi", "pod": {"nodeSelector": {"node": node}}, **more}
        await self.cluster.put(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": spec})

    async def go_on(self, seconds):
        """The time passes, and what a cluster does to pods is done every STEP_S."""
        for _ in range(int(seconds / STEP_S)):
            await self._kubelet()
            await self.operator.resync.once()
            await elapse(STEP_S)
            self.most = max(self.most, len(self.moving()))

    async def _kubelet(self):
        for base, on in self.reader.drains:
            self.reader.says[base] = RuntimeState(phase="draining" if on else "ready")
        running = list(self.cluster.objects.get(POD.plural, {}).values())
        for workload in list(self.cluster.objects.get(DEPLOYMENT.plural, {}).values()):
            marks, count = workload["metadata"]["labels"], workload["spec"]["replicas"]
            mine = [p for p in running if self.of(p) == self.of(workload)]
            for gone in mine[count:]:
                await self.cluster.drop(POD, "default", gone["metadata"]["name"])
            for _ in range(count - len(mine)):
                self.pods += 1
                ip, image = f"10.0.0.{self.pods}", workload["spec"]["template"]["spec"]["containers"][0]["image"]
                fine = image not in self.broken
                made = pod(f"p{self.pods}", revision=marks[names.LABEL_REVISION], ready=fine, ip=ip)
                made["metadata"]["labels"][names.LABEL_SERVICE] = marks[names.LABEL_SERVICE]
                await self.cluster.put(POD, made)
                self.reader.says[f"http://{ip}:8001"] = RuntimeState(phase="ready" if fine else "loading")

    @staticmethod
    def of(obj):
        marks = obj["metadata"]["labels"]
        return marks[names.LABEL_SERVICE], marks[names.LABEL_REVISION]

    def moving(self):
        """Services that are not wholly on one revision."""
        revisions = {}
        for found in self.cluster.objects.get(POD.plural, {}).values():
            name, revision = self.of(found)
            revisions.setdefault(name, set()).add(revision)
        return [name for name in SERVICES if len(revisions.get(name, ())) != 1]

    def having(self, look):
        """Services all pods of which come from a template in which look finds something."""
        objects = self.cluster.objects
        templates = {self.of(w): w["spec"]["template"]["spec"] for w in objects[DEPLOYMENT.plural].values()}
        return [
            name
            for name in SERVICES
            if all(look(templates[self.of(p)]) for p in objects[POD.plural].values() if self.of(p)[0] == name)
        ]

    def rollout(self, name):
        return self.cluster.stored(INFERENCE_SERVICE, "default", name)["status"]["rollout"]

    def ready_reason(self, name):
        conditions = self.cluster.stored(INFERENCE_SERVICE, "default", name)["status"]["conditions"]
        return next(c["reason"] for c in conditions if c["type"] == "Ready")

    @contextlib.asynccontextmanager
    async def serving(self, spec):
        """All services are ready, and nothing moves."""
        await self.fill(spec)
        async with self.running():
            await self.go_on(60)
            assert [self.ready_reason(name) for name in SERVICES] == ["AllReplicasReady"] * len(SERVICES)
            self.most = 0
            yield


def on_node(node):
    return lambda spec: spec["nodeSelector"] == {"node": node}


def image(name):
    return lambda spec: spec["containers"][0]["image"] == name


@pytest.mark.parametrize("most", [1, 2])
def test_an_edit_of_a_class_rolls_so_many_services_at_a_time(most):
    async def story():
        fleet = Fleet(fleet_max_unavailable=most)
        await fleet.put_class("a")
        async with fleet.serving(ON_CLASS):
            await fleet.put_class("b")
            await fleet.go_on(STEP_S * 2)
            assert len(fleet.moving()) == most
            waiting = fleet.rollout(SERVICES[-1])
            assert waiting["phase"] == "Waiting"
            assert f"at most {most} service" in waiting["message"]
            assert fleet.ready_reason(SERVICES[-1]) == "AllReplicasReady"
            await fleet.go_on(300)
            assert fleet.having(on_node("b")) == SERVICES
            assert fleet.most == most
            assert [fleet.rollout(name).get("phase") for name in SERVICES] == [None] * len(SERVICES)

    virtual_loop.run(story())


def test_services_take_an_edit_in_the_order_of_their_names_and_an_edit_of_a_spec_at_once():
    async def story():
        fleet = Fleet()
        await fleet.put_class("a")
        async with fleet.serving(ON_CLASS):
            fleet.broken = {names.IMAGE_RUNTIME}  # the first one stays on its way
            await fleet.put_class("b")
            await fleet.go_on(30)
            assert fleet.moving() == ["s0"]
            await fleet.cluster.put(
                INFERENCE_SERVICE, edited(fleet, "s2", {**ON_CLASS, "pod": {"annotations": {"at": "once"}}})
            )
            await fleet.go_on(30)
            assert fleet.moving() == ["s0", "s2"]

    virtual_loop.run(story())


def edited(fleet, name, spec):
    old = fleet.cluster.stored(INFERENCE_SERVICE, "default", name)
    generation = old["metadata"]["generation"] + 1
    return {**old, "spec": service(name, **spec)["spec"], "metadata": {**old["metadata"], "generation": generation}}


def test_a_service_that_cannot_go_on_stops_the_others_and_is_named_to_them():
    async def story():
        fleet = Fleet()
        await fleet.put_class("a")
        spec = {**ON_CLASS, "rollout": {"progressDeadlineSeconds": 120}}
        async with fleet.serving(spec):
            fleet.broken = {names.IMAGE_RUNTIME}
            await fleet.put_class("b")
            await fleet.go_on(300)
            assert fleet.moving() == ["s0"]
            assert "; s0 took it and cannot go on" in fleet.rollout("s3")["message"]
            paused = {**spec, "rollout": {"progressDeadlineSeconds": 120, "paused": True}}
            await fleet.cluster.put(INFERENCE_SERVICE, edited(fleet, "s0", paused))
            await fleet.go_on(30)
            assert fleet.moving() == ["s0", "s1"]
            await fleet.cluster.put(INFERENCE_SERVICE, edited(fleet, "s0", spec))
            await fleet.go_on(30)
            fleet.broken = set()
            await fleet.put_class("c")  # those on the way take what cures it at once
            await fleet.go_on(400)
            assert fleet.having(on_node("c")) == SERVICES
            assert fleet.most == 2  # with the one that was paused

    virtual_loop.run(story())


class OfTag:
    """Images of a tag."""

    def __init__(self, tag):
        self.tag = tag

    def __contains__(self, name):
        return name.endswith(f":{self.tag}")


def test_a_service_that_never_served_holds_up_no_other_one():
    async def story():
        fleet = Fleet()
        fleet.broken = OfTag("bad")
        await fleet.put_class("a")
        async with fleet.serving(ON_CLASS):
            await fleet.fill({**ON_CLASS, "runtimeVersion": "bad"}, ["never"])
            await fleet.go_on(60)
            await fleet.put_class("b")
            await fleet.go_on(400)
            assert fleet.ready_reason("never") != "AllReplicasReady"
            assert set(SERVICES) <= set(fleet.having(on_node("b")))

    virtual_loop.run(story())


def test_an_image_of_a_class_goes_round_in_turn_among_services_with_a_version_too():
    async def story():
        fleet = Fleet()
        await fleet.put_class("a", runtimeImage="own/runtime:1")
        async with fleet.serving({**ON_CLASS, "runtimeVersion": "0.2.0"}):
            await fleet.put_class("a", runtimeImage="own/runtime:2")
            await fleet.go_on(STEP_S * 2)
            assert len(fleet.moving()) == 1
            await fleet.go_on(300)
            assert fleet.having(image("own/runtime:2")) == SERVICES
            assert fleet.most == 1

    virtual_loop.run(story())


def test_an_edit_that_is_taken_back_leaves_those_alone_that_waited():
    async def story():
        fleet = Fleet()
        await fleet.put_class("a")
        async with fleet.serving(ON_CLASS):
            before = {key: p["metadata"]["uid"] for key, p in fleet.cluster.objects[POD.plural].items()}
            await fleet.put_class("b")
            await fleet.go_on(STEP_S * 2)
            await fleet.put_class("a")
            await fleet.go_on(300)
            assert fleet.having(on_node("a")) == SERVICES
            now = {key: p["metadata"]["uid"] for key, p in fleet.cluster.objects[POD.plural].items()}
            assert len(before.items() & now.items()) >= len(SERVICES) - 1

    virtual_loop.run(story())


def test_services_that_follow_take_the_operators_image_in_turn_and_others_do_not():
    async def story():
        fleet = Fleet(runtime_image_cpu="cpu:1")
        async with fleet.serving(FOLLOWS):
            await fleet.cluster.put(INFERENCE_SERVICE, edited(fleet, "s1", FILE))
            await fleet.cluster.put(INFERENCE_SERVICE, edited(fleet, "s2", {**FILE, "runtimeVersion": "1"}))
            await fleet.go_on(30)
            assert fleet.most == 0
        fleet.start_again(runtime_image_cpu="cpu:2")
        async with fleet.running():
            await fleet.go_on(400)
            assert fleet.having(image("cpu:2")) == ["s0", "s3"]
            assert fleet.most == 1
            await fleet.cluster.put(INFERENCE_SERVICE, edited(fleet, "s0", {**FILE, "runtimeVersion": "1"}))
            await fleet.go_on(60)
            assert fleet.having(image("cpu:1")) == ["s0", "s1", "s2"]

    virtual_loop.run(story())


def test_an_operator_that_starts_amid_turns_gives_none_before_it_has_looked_at_all():
    async def story():
        fleet = Fleet()
        await fleet.put_class("a")
        async with fleet.serving(ON_CLASS):
            await fleet.put_class("b")
            await fleet.go_on(STEP_S * 6)
            fleet.broken = {names.IMAGE_RUNTIME}
            await fleet.go_on(STEP_S * 4)
            (stands,) = fleet.moving()
        for _ in range(3):
            fleet.start_again()
            async with fleet.running():
                await fleet.go_on(60)
                assert fleet.moving() == [stands]
        fleet.broken = set()
        fleet.start_again()
        async with fleet.running():
            for name, obj in list(fleet.cluster.objects[POD.plural].items()):
                await fleet.cluster.put(POD, {**obj, "status": {**obj["status"], "conditions": READY}})
                fleet.reader.says[f"http://{obj['status']['podIP']}:8001"] = RuntimeState(phase="ready")
                assert name
            await fleet.go_on(400)
            assert fleet.having(on_node("b")) == SERVICES
            assert fleet.most == 1

    virtual_loop.run(story())


READY = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]


def test_a_service_that_goes_hands_its_turn_on():
    async def story():
        fleet = Fleet()
        await fleet.put_class("a")
        async with fleet.serving(ON_CLASS):
            fleet.broken = {names.IMAGE_RUNTIME}
            await fleet.put_class("b")
            await fleet.go_on(60)
            assert fleet.moving() == ["s0"]
            await fleet.cluster.drop(INFERENCE_SERVICE, "default", "s0")
            await fleet.go_on(60)
            assert fleet.moving() == ["s0", "s1"]  # whose pods go by garbage collection

    virtual_loop.run(story())


def test_none_takes_it_with_0_but_where_nothing_serves():
    async def story():
        fleet = Fleet(fleet_max_unavailable=0)
        await fleet.put_class("a")
        async with fleet.serving(ON_CLASS):
            await fleet.cluster.put(INFERENCE_SERVICE, edited(fleet, "s3", {**ON_CLASS, "replicas": 0}))
            await fleet.go_on(60)
            fleet.most = 0
            await fleet.put_class("b")
            await fleet.go_on(300)
            assert fleet.moving() == ["s3"]  # which has no pod
            assert fleet.rollout("s3").get("phase") is None
            assert fleet.having(on_node("a")) == SERVICES
            assert "at most 0 services" in fleet.rollout("s0")["message"]

    virtual_loop.run(story())


def test_a_class_that_goes_moves_its_services_in_turn_and_one_that_comes_back_keeps_those_that_waited():
    async def story():
        fleet = Fleet()
        await fleet.put_class("a")
        await fleet.put_class("b", name="large")
        both = {**FILE, "resources": {"accelerator": {"count": 1, "classes": ["small", "large"]}}}
        async with fleet.serving(both):
            await fleet.cluster.drop(ACCELERATOR_CLASS, "", "small")
            await fleet.go_on(STEP_S * 2)
            assert fleet.rollout("s3")["acceleratorClass"] == "small"
            await fleet.put_class("a")
            await fleet.go_on(300)
            assert "s3" in fleet.having(on_node("a"))
            assert fleet.most == 1

    virtual_loop.run(story())


def test_a_waiting_fleet_writes_nothing():
    async def story():
        fleet = Fleet(fleet_max_unavailable=0)
        await fleet.put_class("a")
        async with fleet.serving(ON_CLASS):
            await fleet.put_class("b")
            await fleet.go_on(60)
            fleet.cluster.writes = []
            await fleet.go_on(300)
            assert fleet.cluster.writes == []

    virtual_loop.run(story())
