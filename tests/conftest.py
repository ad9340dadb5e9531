"""Fixtures that several test folders share: one real control plane per test run, on loopback.

The first test that wants it starts it (the binaries are built once per user if need be); with several workers all share
it; it ends with the run, even when the run is killed. A test that uses it is marked `e2e` by that alone.
"""

import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from kvasir_local import binaries, install, kubectl
from kvasir_local.cluster_state import RecordedNode
from kvasir_local.control_plane import ControlPlane
from kvasir_local.progress import SilentProgress, TerminalProgress

if TYPE_CHECKING:
    from kubernetes import client

    from fakes.life import Life

NODE = RecordedNode(name="kvasir-0", index=0, fake_gpus=4)
TESTS = Path(__file__).parent
pytest.register_assert_rewrite("fakes")  # what a fake asserts fails with the values, too
END_TO_END = ("e2e", "kvasir_local", "outside")
"""Folders of the tests that are `e2e`: `make test-e2e` looks in the first two, which saves it half a minute, and
`make test-clients` in the last."""

LONGEST_ID = 80


def pytest_configure() -> None:
    """What a script runs in its background inherits an ignored ctrl-C, and so would every program that tests
    interrupt. No test finds what another one measured at its start, nor leaves that to the user's next start. One
    thread computes, as under `make test`, so that answers are the same bits."""
    os.environ.setdefault("KVASIR_STARTUP_CACHE", "off")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A busy machine is no failure of what is tested.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Long texts by their length: what a run draws at random would have another name in each worker."""
    return f"{len(val)}-long" if isinstance(val, str | bytes) and len(val) > LONGEST_ID else None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist's own puts the group into the test's id
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("e2e")
        if item.get_closest_marker("e2e"):
            if item.path.relative_to(TESTS).parts[0] not in END_TO_END:
                raise pytest.UsageError(f"{item.nodeid} is e2e, but not in one of tests/{{{','.join(END_TO_END)}}}")
            item.add_marker(pytest.mark.xdist_group(_lane(item)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds before any test runs, since a first build takes longer than a test may."""
    wanted = [item for item in session.items if item.get_closest_marker("e2e")]
    if hasattr(session.config, "workerinput") and session.config.getvalue("loadgroup"):
        lost = [item.nodeid for item in wanted if not item.nodeid.endswith(f"@{_lane(item)}")]
        assert not lost, f"several workers would run tests that share a control plane: {lost}"
    if wanted and not session.config.option.collectonly:
        with _on_screen(session.config):
            binaries.provide(progress=TerminalProgress())


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if _run_pid(session.config) != os.getpid():
        return  # a worker: the others may still need the cluster
    state_dir = _state_dir(session.config)
    if state_dir.exists():
        ControlPlane(state_dir=state_dir).stop()
        if exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            shutil.rmtree(state_dir)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    logs = _state_dir(config) / "logs"
    if logs.exists():
        terminalreporter.write_line(f"logs of the local cluster: {logs}")


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> ControlPlane:
    """etcd, API server, controllers, scheduler: `.kubeconfig`, `.kubectl`, `.paths.audit_log`; no node."""
    with _on_screen(pytestconfig):
        found = ControlPlane(
            state_dir=_state_dir(pytestconfig),
            binaries=binaries.provide(progress=TerminalProgress()),
            owner=_run_pid(pytestconfig),
        )
        found.start()
    return found


@pytest.fixture(scope="session")
def cluster_node(cluster: ControlPlane) -> ControlPlane:
    """The same with one Ready process node, NODE, that claims four GPUs."""
    cluster.start_node(NODE)
    cluster.await_node(NODE.name)
    return cluster


@pytest.fixture(scope="session")
def installed(cluster_node: ControlPlane) -> ControlPlane:
    """The same with operator and gateway, from manifests/local; its address is `stack.gateway_url(installed)`."""
    overlay = install.find_manifests()
    assert overlay is not None, "manifests/local/kustomization.yaml is not there"
    address = cluster_node.state.network.node_address
    install.apply(cluster_node.kubectl, overlay, node_address=address, progress=SilentProgress())
    install.await_workloads(cluster_node.kubectl, progress=SilentProgress(), timeout_s=90)
    return cluster_node


@pytest.fixture
def bare(installed: ControlPlane) -> Iterator["Life"]:
    """A namespace without a volume on everything real."""
    from fakes.life import Life  # only runs that need it pay for its imports

    namespace = f"bare-{time.time_ns() % 10**9}"
    kubectl.run(installed.kubectl, "create", "namespace", namespace)
    yield Life(installed, namespace)
    kubectl.run(installed.kubectl, "delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="session")
def api(cluster: ControlPlane) -> Iterator["client.ApiClient"]:
    """A client of the `cluster` as its administrator."""
    from kubernetes import config  # a second to import: only the runs that need it pay

    with config.new_client_from_config(config_file=os.fspath(cluster.kubeconfig)) as found:
        yield found


@pytest.fixture
def namespace(api: "client.ApiClient") -> Iterator[str]:
    """A fresh namespace with what a pod in it needs; deleted afterwards, without waiting for its end."""
    from kubernetes import client

    core = client.CoreV1Api(api)
    name = f"test-{uuid.uuid4().hex[:8]}"
    core.create_namespace({"metadata": {"name": name}})
    deadline = time.monotonic() + 60
    while not (
        any(found.metadata.name == "default" for found in core.list_namespaced_service_account(name).items)
        and any(found.metadata.name == "kube-root-ca.crt" for found in core.list_namespaced_config_map(name).items)
    ):
        assert time.monotonic() < deadline, f"no default service account or CA in namespace {name} after 60 s"
        time.sleep(0.02)
    yield name
    core.delete_namespace(name)


def _lane(item: pytest.Item) -> str:
    """What an end-to-end test must not meet itself on from another worker: the one control plane or the other, of which
    it may take rights and definitions away, or else the processes of its file."""
    needs = getattr(item, "fixturenames", ())
    return next((name for name in ("cluster", "control") if name in needs), item.path.stem)


def _run_pid(config: pytest.Config) -> int:
    """The process that is the whole run: with xdist the parent of the workers."""
    return os.getppid() if hasattr(config, "workerinput") else os.getpid()


def _state_dir(config: pytest.Config) -> Path:
    return Path(tempfile.gettempdir()) / f"kvasir-test-{_run_pid(config)}"


def _on_screen(config: pytest.Config):
    return config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled()
