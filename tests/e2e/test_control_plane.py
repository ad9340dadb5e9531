"""The control plane as the other tests get it: what its users may rely on."""

import json
import subprocess

from kubernetes import client

from kvasir_local import access, audit, component_flags, credentials
from kvasir_local import kubectl as shell
from kvasir_local.control_plane import ControlPlane


def kubectl(cluster: ControlPlane, *arguments: str) -> str:
    return shell.run(cluster.kubectl, *arguments)


def test_every_member_answers(cluster):
    answers = cluster.health()
    assert {*component_flags.COMPONENTS, "watchdog"} <= answers.keys()
    assert [(name, answer.text) for name, answer in answers.items() if not answer.ok] == []


def test_kubectl_and_server_are_the_same_release(cluster):
    versions = json.loads(kubectl(cluster, "version", "--output=json"))
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"]


def test_a_namespace_gets_its_account_and_the_clusters_ca(api, namespace):
    core = client.CoreV1Api(api)
    ca = core.read_namespaced_config_map("kube-root-ca.crt", namespace)
    assert ca.data["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")


def test_a_service_account_token_is_accepted_and_limited_by_rbac(cluster, api, namespace):
    core = client.CoreV1Api(api)
    request = {"spec": {"expirationSeconds": 600}}
    token = core.create_namespaced_service_account_token("default", namespace, request).status.token
    said = subprocess.run(
        [
            *cluster.kubectl[:1],
            f"--server=https://127.0.0.1:{cluster.state.network.apiserver}",
            f"--certificate-authority={cluster.paths.pki / 'ca.crt'}",
            "--kubeconfig=/dev/null",
            f"--token={token}",
            "get",
            "pods",
            f"--namespace={namespace}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert f'User "system:serviceaccount:{namespace}:default" cannot list resource "pods"' in said.stderr


def test_the_audit_log_says_who_wrote_what(cluster, api, namespace):
    core = client.CoreV1Api(api)
    _, mark = audit.read(cluster.paths.audit_log)
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "marked"}, "data": {"a": "1"}})
    core.read_namespaced_config_map("marked", namespace)
    written, _ = audit.read(cluster.paths.audit_log, since=mark)
    of_ours = [write for write in written if write.name == "marked"]
    assert [(write.user, write.verb, write.resource, write.namespace, write.code) for write in of_ours] == [
        ("kvasir-admin", "create", "configmaps", namespace, 201)
    ]


def test_deployments_make_pods_and_deletion_collects_them(cluster, api, namespace):
    pod = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "none"}], "nodeSelector": {"nowhere": "1"}},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": pod}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}
    shell.apply([*cluster.kubectl, f"--namespace={namespace}"], json.dumps(deployment))
    kubectl(
        cluster,
        "wait",
        f"--namespace={namespace}",
        "deployment/x",
        "--for=jsonpath={.status.replicas}=2",
        "--timeout=60s",
    )
    kubectl(cluster, "delete", f"--namespace={namespace}", "deployment/x", "--cascade=foreground", "--timeout=60s")
    assert client.CoreV1Api(api).list_namespaced_pod(namespace).items == []


def test_secrets_are_the_owners_alone(cluster):
    loose = [
        path
        for path in cluster.paths.root.rglob("*")
        if path.suffix in {".key", ".csv", ".kubeconfig"} or path.name == "kubeconfig"
        if path.stat().st_mode & 0o077
    ]
    assert loose == []
    assert cluster.paths.root.stat().st_mode & 0o077 == 0


def test_a_node_is_known_by_its_certificate_and_may_do_its_work(cluster):
    kubeconfig = credentials.write_node(cluster.paths, cluster.state.network, "by-hand")
    shell.apply(cluster.kubectl, access.node_roles())
    as_node = [cluster.kubectl[0], f"--kubeconfig={kubeconfig}"]
    attributes = json.loads(shell.run(as_node, "auth", "whoami", "--output=json"))["status"]["userInfo"]
    assert attributes["username"] == "system:node:by-hand"
    assert set(attributes["groups"]) == {*access.NODE_GROUPS, "system:authenticated"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "by-hand"}}
    shell.apply(as_node, json.dumps(node))
    kubectl(cluster, "delete", "node", "by-hand")
