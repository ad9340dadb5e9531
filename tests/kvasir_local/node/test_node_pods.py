"""Pods on a real control plane: they run, are probed, show their files, end, are refused, and leave nothing behind."""

import base64
import subprocess
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest

from fakes.node_bench import NodeBench, pod, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

IDLE = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
ASK_API_SERVER = """
import os, ssl, urllib.error, urllib.request
account = '/var/run/secrets/kubernetes.io/serviceaccount/'
read = lambda name: open(account + name).read()
host, port = os.environ['KUBERNETES_SERVICE_HOST'], os.environ['KUBERNETES_SERVICE_PORT']
where = read('namespace')
url = f'https://{host}:{port}/api/v1/namespaces/{where}/pods/me'
request = urllib.request.Request(url, headers={'Authorization': 'Bearer ' + read('token')})
try:
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=account + 'ca.crt'))
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def running(bench: NodeBench, name: str) -> bool:
    return bench.phase(name) == "Running"


def web(bench: NodeBench, mark: str) -> dict[str, Any]:
    """A Deployment of two web servers that show a ConfigMap."""
    template = pod(
        bench,
        "web",
        command=["python", "-u", "-m", "http.server", "8000", "--bind", "$(POD_IP)", "-d", "/conf"],
        env=[POD_IP, {"name": "MARK", "value": mark}],
        args=["--protocol", "HTTP/1.0"],
        ports=[{"name": "http", "containerPort": 8000}],
        startupProbe={"tcpSocket": {"port": "http"}, "periodSeconds": 1, "failureThreshold": 60},
        readinessProbe={"httpGet": {"path": "/greeting", "port": "http"}, "periodSeconds": 1},
        livenessProbe={"exec": {"command": ["cat", "/conf/greeting"]}, "periodSeconds": 1, "timeoutSeconds": 10},
        volumeMounts=[{"name": "conf", "mountPath": "/conf"}],
        securityContext={
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        spec=None,
    )
    template["spec"]["volumes"] = [{"name": "conf", "configMap": {"name": "conf"}}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }


def test_a_deployment_serves_follows_its_config_and_leaves_no_process(bench: NodeBench):
    mark = uuid.uuid4().hex
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf"}, "data": {"greeting": "hello"}}
    bench.apply(config, web(bench, mark))
    bench.kubectl("wait", "--for=condition=Available", "deploy/web", "--timeout=60s")
    addresses = {item["status"]["podIP"] for item in bench.pods()}
    assert len(addresses) == 2

    def fetch(path: str) -> set[str]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        answers = (opener.open(f"http://{address}:8000/{path}", timeout=60) for address in addresses)
        return {answer.read().decode() for answer in answers}

    assert fetch("greeting") == {"hello"}
    assert "GET /greeting" in bench.kubectl("logs", "deploy/web")
    bench.apply({**config, "data": {"greeting": "good day"}})
    until(lambda: fetch("greeting") == {"good day"}, "the new file")
    bench.kubectl("delete", "deploy", "web", "--wait=false")
    until(lambda: not bench.pods(), "the end of the pods")
    assert bench.processes(next(iter(addresses))) == []


def test_readiness_follows_the_probe_and_a_failed_liveness_probe_restarts(bench: NodeBench):
    ready = {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 10}
    live = {"exec": {"command": ["test", "!", "-e", "/tmp/sick"]}, "periodSeconds": 1, "timeoutSeconds": 10}
    shared = {"volumes": [{"name": "t", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]}
    mounts = [{"name": "t", "mountPath": "/tmp"}]
    script = f"rm -f /tmp/sick; {IDLE}"
    bench.apply(pod(bench, "p", script, spec=shared, readinessProbe=ready, livenessProbe=live, volumeMounts=mounts))
    until(lambda: running(bench, "p"))
    assert bench.container("p")["ready"] is False
    tmp = bench.state_dir / "pods" / bench.pod("p")["metadata"]["uid"] / "volumes" / "t"
    until(tmp.exists)
    (tmp / "ready").touch()
    until(lambda: bench.container("p")["ready"], "readiness")
    (tmp / "sick").touch()
    until(lambda: bench.container("p")["restartCount"] == 1, "the restart")
    until(lambda: any("failed liveness probe, will be restarted" in text for text in bench.events("Killing")))
    assert bench.container("p")["lastState"]["terminated"]["exitCode"] == 0
    repeated = [text for text in bench.events("Unhealthy") if text.startswith("Liveness")]
    assert len(repeated) == 1


def test_a_container_gets_its_grace_and_is_killed_after_it(bench: NodeBench):
    polite = pod(
        bench, "polite", IDLE, lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "echo pre > /proc/2/fd/1"]}}}
    )
    bench.apply(polite, pod(bench, "stubborn", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
    until(lambda: running(bench, "polite") and running(bench, "stubborn"))
    until(lambda: "up" in bench.kubectl("logs", "polite") and "up" in bench.kubectl("logs", "stubborn"))
    command = [*bench.cluster.kubectl, "-n", bench.namespace, "logs", "-f", "polite"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follow:
        assert follow.stdout is not None
        assert follow.stdout.readline() == "up\n"  # it follows: a pod that has gone has no log
        bench.kubectl("delete", "pod", "polite", "--wait=true", "--timeout=60s")
        assert follow.stdout.read().split() == ["pre", "bye"]
    bench.kubectl("delete", "pod", "stubborn", "--grace-period=1", "--timeout=60s")
    assert bench.pods() == []


def test_a_crashing_container_backs_off_and_keeps_its_last_log(bench: NodeBench):
    script = "echo run; echo 'kvasir: no such model' >&2; exit 3"
    bench.apply(pod(bench, "p", script, terminationMessagePolicy="FallbackToLogsOnError"))
    until(lambda: bench.container("p").get("restartCount", 0) >= 2, "two restarts")
    until(lambda: bench.container("p")["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff", "back-off")
    last = bench.container("p")["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (3, "Error")
    assert "kvasir: no such model" in last["message"]
    assert "run" in bench.kubectl("logs", "p", "--previous")
    assert bench.phase("p") == "Running"
    assert bench.events("BackOff") == ["Back-off restarting failed container main in pod p"]


def test_what_the_node_does_not_honour_is_refused_by_name(bench: NodeBench):
    bench.apply(pod(bench, "p", IDLE, spec={"shareProcessNamespace": True}, tty=True))
    until(lambda: bench.phase("p") == "Failed")
    status = bench.pod("p")["status"]
    assert status["reason"] == "UnsupportedField"
    assert "spec.containers[0].tty" in status["message"]
    assert "spec.shareProcessNamespace" in status["message"]
    until(lambda: bench.events("UnsupportedField") == [status["message"]])


def test_what_is_added_later_and_not_honoured_is_said(bench: NodeBench):
    bench.apply(pod(bench, "p", IDLE))
    until(lambda: running(bench, "p"))
    debug = {"ephemeralContainers": [{"name": "debug", "image": "kvasir-local/process"}]}
    bench.core.patch_namespaced_pod_ephemeralcontainers("p", bench.namespace, {"spec": debug})
    until(lambda: any("spec.ephemeralContainers" in text for text in bench.events("UnsupportedField")))
    assert running(bench, "p")


@pytest.mark.parametrize(
    ("extra", "reason", "words"),
    [
        ({"image": "nginx:1"}, "ErrImagePull", 'image "nginx:1"'),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]},
            "CreateContainerConfigError",
            'secret "no" not found',
        ),
    ],
)
def test_a_container_that_cannot_start_says_why(bench: NodeBench, extra: dict[str, Any], reason: str, words: str):
    bench.apply(pod(bench, "p", IDLE, **extra))
    found = until(lambda: bench.container("p").get("state", {}).get("waiting"), "a reason")
    until(lambda: bench.container("p")["state"]["waiting"]["reason"] == reason, reason)
    found = bench.container("p")["state"]["waiting"]
    assert words in found["message"]
    until(lambda: any(words in text for text in bench.events("Failed")))


def test_a_missing_program_is_a_start_error(bench: NodeBench):
    bench.apply(pod(bench, "p", command=["no-such-program"], spec={"restartPolicy": "Never"}))
    until(lambda: bench.phase("p") == "Failed")
    ended = bench.container("p")["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert "no-such-program" in ended["message"]


def test_init_containers_run_in_order_and_a_finished_pod_succeeds(bench: NodeBench):
    mounts = [{"name": "w", "mountPath": "/w"}]
    steps = [
        {
            "name": name,
            "image": "kvasir-local/process",
            "command": ["sh", "-c", f"echo {name} >> /w/x"],
            "volumeMounts": mounts,
        }
        for name in ("one", "two")
    ]
    spec = {"initContainers": steps, "volumes": [{"name": "w", "emptyDir": {}}], "restartPolicy": "Never"}
    script = "cat /w/x; echo said > /dev/termination-log"
    bench.apply(pod(bench, "p", script, spec=spec, volumeMounts=mounts))
    until(lambda: bench.phase("p") == "Succeeded")
    assert bench.kubectl("logs", "p").split() == ["one", "two"]
    status = bench.pod("p")["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["message"] == "said\n"
    assert [item["state"]["terminated"]["exitCode"] for item in status["initContainerStatuses"]] == [0, 0]


def test_a_pod_knows_itself_its_secrets_and_the_api_server(bench: NodeBench):
    secret = {"key": base64.b64encode(b"s3cret").decode()}
    bench.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": secret},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"color": "blue"}},
    )
    script = f'echo "$MY_NAME $POD_IP $color $KEY $(cat /sub/x) $(hostname)"; python -c "{ASK_API_SERVER}"'
    env = [
        POD_IP,
        {"name": "MY_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
    ]
    found = pod(
        bench,
        "me",
        script,
        env=env,
        envFrom=[{"configMapRef": {"name": "c"}}],
        volumeMounts=[{"name": "s", "mountPath": "/sub/x", "subPath": "key", "readOnly": True}],
        spec={"volumes": [{"name": "s", "secret": {"secretName": "s"}}], "restartPolicy": "Never"},
    )
    bench.apply(found)
    until(lambda: bench.phase("me") == "Succeeded")
    first, *answer = bench.kubectl("logs", "me").splitlines()
    ip = bench.pod("me")["status"]["podIP"]
    assert first == f"me {ip} blue s3cret s3cret me"
    account = f"system:serviceaccount:{bench.namespace}:default"
    assert f'User \\"{account}\\" cannot get' in "".join(answer)


def test_a_claim_is_bound_shared_and_dropped(bench: NodeBench):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    spec = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}], "restartPolicy": "Never"}
    mounts = [{"name": "d", "mountPath": "/data"}]
    bench.apply(claim, pod(bench, "writer", "echo shared > /data/x", spec=spec, volumeMounts=mounts))
    until(lambda: bench.phase("writer") == "Succeeded")
    bench.apply(pod(bench, "reader", "cat /data/x", spec=spec, volumeMounts=mounts))
    until(lambda: bench.phase("reader") == "Succeeded")
    assert bench.kubectl("logs", "reader") == "shared\n"
    volume = bench.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
    directory = Path(bench.core.read_persistent_volume(volume).spec.host_path.path)
    assert (directory / "x").read_text() == "shared\n"
    bench.kubectl("delete", "pod", "writer", "reader", "--timeout=60s")
    bench.kubectl("delete", "pvc", "data", "--timeout=60s")
    until(lambda: not directory.exists(), "the end of the directory")


def test_gpus_are_counted_and_hidden_from_others(bench: NodeBench):
    gpu = {"limits": {"nvidia.com/gpu": "1"}}
    found = [pod(bench, f"g{index}", IDLE, resources=gpu) for index in range(3)]
    bench.apply(*found)
    until(lambda: sum(running(bench, f"g{index}") for index in range(3)) == 2)
    waiting = next(f"g{index}" for index in range(3) if not running(bench, f"g{index}"))
    until(lambda: bench.events("FailedScheduling"), "the scheduler's word")
    other = next(f"g{index}" for index in range(3) if f"g{index}" != waiting)
    bench.kubectl("delete", "pod", other, "--timeout=60s")
    until(lambda: running(bench, waiting), "the third pod")
