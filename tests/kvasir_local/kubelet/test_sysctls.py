"""The machine has its own sysctls again after the last kubelet."""

import pytest

from kvasir_local.kubelet import sysctls

OWN, KUBELETS = "0\n", "1\n"


@pytest.fixture
def proc(tmp_path):
    for name in sysctls.CHANGED:
        (tmp_path / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / name).write_text(OWN)
    return tmp_path / "proc"


def change(proc):
    for name in sysctls.CHANGED:
        (proc / name).write_text(KUBELETS)


def values(proc):
    return {(proc / name).read_text().strip() for name in sysctls.CHANGED if (proc / name).exists()}


def test_values_come_back(tmp_path, proc):
    file = tmp_path / "sysctls.json"
    sysctls.save(file, boot_id="now", proc=proc)
    change(proc)
    sysctls.restore(file, boot_id="now", proc=proc)
    assert values(proc) == {"0"}
    assert not file.exists()


def test_a_second_cluster_saves_nothing_over_the_machines_own(tmp_path, proc):
    file = tmp_path / "sysctls.json"
    sysctls.save(file, boot_id="now", proc=proc)
    change(proc)
    sysctls.save(file, boot_id="now", proc=proc)
    sysctls.restore(file, boot_id="now", proc=proc)
    assert values(proc) == {"0"}


def test_values_of_an_earlier_boot_are_not_set(tmp_path, proc):
    file = tmp_path / "sysctls.json"
    sysctls.save(file, boot_id="before", proc=proc)
    change(proc)
    sysctls.restore(file, boot_id="now", proc=proc)
    assert values(proc) == {"1"}
    assert not file.exists()


def test_a_kernel_without_one_of_them_has_the_others(tmp_path, proc):
    file = tmp_path / "sysctls.json"
    (proc / sysctls.CHANGED[0]).unlink()
    sysctls.save(file, boot_id="now", proc=proc)
    (proc / sysctls.CHANGED[1]).write_text(KUBELETS)
    sysctls.restore(file, boot_id="now", proc=proc)
    assert values(proc) == {"0"}
