"""Kubeconfigs, the token file and the audit policy."""

import base64
import json

import pytest

from kvasir_local import access

TOKENS = {user: f"token-of-{user}" for user in access.IDENTITIES}


def test_token_file_names_user_and_groups():
    assert access.token_file(TOKENS).splitlines() == [
        'token-of-kvasir-admin,kvasir-admin,kvasir-admin,"system:masters"',
        "token-of-system:kube-controller-manager,system:kube-controller-manager,system:kube-controller-manager",
        "token-of-system:kube-scheduler,system:kube-scheduler,system:kube-scheduler",
    ]


def test_an_identity_without_a_token_is_an_error():
    with pytest.raises(KeyError, match="system:kube-scheduler"):
        access.token_file({user: token for user, token in TOKENS.items() if "scheduler" not in user})


def test_kubeconfig_holds_everything_inline():
    credential = access.Token(token="secret")
    config = json.loads(access.kubeconfig(server="https://h:1", ca=b"CA", user="me", credential=credential))
    assert config["clusters"][0]["cluster"] == {
        "server": "https://h:1",
        "certificate-authority-data": base64.b64encode(b"CA").decode(),
    }
    assert config["users"] == [{"name": "me", "user": {"token": "secret"}}]
    assert config["contexts"][0]["name"] == config["current-context"]


def test_kubeconfig_of_a_certificate_user_has_no_token():
    credential = access.ClientCertificate(certificate=b"C", key=b"K")
    config = json.loads(access.kubeconfig(server="https://h:1", ca=b"CA", user="me", credential=credential))
    assert config["users"][0]["user"] == {"client-certificate-data": "Qw==", "client-key-data": "Sw=="}


def test_audit_policy_leaves_out_bodies_and_all_reads_but_ours():
    policy = json.loads(access.audit_policy())
    assert policy["rules"] == [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:kvasir-system"]},
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ]


def test_what_enforces_policies_may_read_and_nothing_else():
    items = json.loads(access.node_roles())["items"]
    (role,) = [i for i in items if i["kind"] == "ClusterRole" and i["metadata"]["name"] == access.KUBE_ROUTER]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not {"secrets", "configmaps"} & {resource for rule in role["rules"] for resource in rule["resources"]}
    (binding,) = [i for i in items if i["kind"] == "ClusterRoleBinding" and i["roleRef"]["name"] == access.KUBE_ROUTER]
    assert [subject["name"] for subject in binding["subjects"]] == [access.KUBE_ROUTER]
