"""What a real node needs is named when it is missing."""

from contextlib import nullcontext

import pytest

from kvasir_local.errors import MissingToolError
from kvasir_local.kubelet import packages


def program(directory, name):
    directory.mkdir(exist_ok=True)
    (directory / name).touch(mode=0o755)


def test_packages_of_missing_programs_are_named_once(tmp_path):
    program(tmp_path, "buildah")
    wanted = {"buildah": "buildah", "containerd": "containerd", "ctr": "containerd", "/none/ptp": "plugins"}
    assert packages.missing(path=str(tmp_path), programs=wanted) == ["containerd", "plugins"]


def test_nothing_is_missing_where_every_program_is(tmp_path):
    program(tmp_path, "runc")
    assert packages.missing(path=str(tmp_path), programs={"runc": "runc", str(tmp_path / "runc"): "x"}) == []


def test_no_service_starts_during_an_installation_only(tmp_path):
    policy = tmp_path / "policy-rc.d"
    with packages.no_services(policy):
        assert policy.stat().st_mode & 0o111
        assert policy.read_text().endswith("exit 101\n")
    assert not policy.exists()


def test_what_a_killed_run_left_is_removed_and_a_policy_of_others_is_not(tmp_path):
    left, others = tmp_path / "left", tmp_path / "others"
    others.write_text("#!/bin/sh\nexit 101\n")
    with packages.no_services(left), packages.no_services(others):
        copy = left.read_text()
    left.write_text(copy)
    packages.remove_policy(left)
    packages.remove_policy(others)
    assert not left.exists()
    assert others.exists()


@pytest.mark.parametrize("ends", [0, 1])
def test_a_kernel_without_sets_for_rules_is_told_before_a_start(tmp_path, monkeypatch, ends):
    tried = tmp_path / "unshare"
    tried.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\necho Kernel error >&2\nexit {ends}\n')
    tried.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(MissingToolError, match="xt_set of this machine's kernel: Kernel error")
        if ends
        else nullcontext()
    ):
        packages.check_ip_sets()
    assert (tmp_path / "asked").read_text().startswith("--net sh -c ipset create")
