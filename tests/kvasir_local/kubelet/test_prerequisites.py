"""What a machine lacks for a kubelet is named, with what needs it."""

from dataclasses import replace

import pytest

from kvasir_local.kubelet import prerequisites
from kvasir_local.kubelet.prerequisites import MachineFacts

FIRST = """\
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0
"""
WHOLE = MachineFacts(
    effective=(1 << 40) - 1, filesystems="nodev\ttmpfs\nnodev\toverlay\n", mounts=FIRST, controllers=""
)


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        (WHOLE, []),
        (
            replace(WHOLE, mounts="cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", controllers="cpuset cpu io memory pids\n"),
            [],
        ),
        (
            replace(WHOLE, effective=WHOLE.effective & ~(1 << 21)),
            ["CAP_SYS_ADMIN (mounts, namespaces and control groups)"],
        ),
        (replace(WHOLE, filesystems="nodev\ttmpfs\n\text4\n"), ["overlay in /proc/filesystems (images)"]),
        (replace(WHOLE, mounts=""), ["control groups for cpu, memory, pids (limits of pods)"]),
        (
            replace(WHOLE, mounts="cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", controllers="cpu pids"),
            ["control groups for memory (limits of pods)"],
        ),
    ],
)
def test_what_a_machine_lacks_is_named(facts, want):
    assert prerequisites.lacking(facts) == want


def test_the_facts_of_this_machine_can_be_read():
    found = prerequisites.read()
    assert found.effective >= 0
    assert "tmpfs" in found.filesystems
    assert "/proc" in found.mounts
