"""Mounts by the text of mountinfo."""

from kvasir_local.kubelet import mounts

# A bind mount of a directory on itself, as `ip netns` makes it: same device above and below.
TEXT = r"""27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
105 27 254:0 /run/netns /run/netns rw,relatime shared:1 - ext4 /dev/vda rw
106 27 0:40 / /var/lib/kvasir/0/0/a\040b rw - tmpfs tmpfs rw
"""


def test_a_bind_mount_within_one_disk_is_seen():
    assert "/run/netns" in mounts.points(TEXT)


def test_names_with_blanks_are_read_as_they_are():
    assert mounts.points(TEXT)[2] == "/var/lib/kvasir/0/0/a b"


def test_the_mounts_of_this_machine_are_read(tmp_path):
    assert mounts.below(tmp_path) == []
    assert not mounts.is_mount(tmp_path)
