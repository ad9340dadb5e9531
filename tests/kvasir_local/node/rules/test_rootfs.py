"""The layout of a container's root, on a small pretended host."""

import pytest

from kvasir_local.node.rules import rootfs
from kvasir_local.node.rules.rootfs import Mount

TREE = {
    "bin": "usr/bin",
    "etc": {"hosts": None, "ssl": {"certs": {}}},
    "usr": {"bin": {"sh": None}, "share": {"doc": {}}},
    "var": {"run": "/run", "tmp": {}, "lib": {}},
    "run": {"dbus": {}},
    "tmp": {"venv": {"bin": {}}},
    "proc": {},
    "dev": {"null": None},
}


class FakeHost:
    """A host made of nested dicts: a dict is a directory, a string a link, None a file."""

    def _at(self, path: str) -> object:
        here: object = TREE
        for part in path.strip("/").split("/") if path != "/" else ():
            if not isinstance(here, dict) or part not in here:
                return KeyError
            here = here[part]
        return here

    def kind(self, path: str) -> str | None:
        found = self._at(path)
        if found is KeyError:
            return None
        return "dir" if isinstance(found, dict) else "link" if isinstance(found, str) else "file"

    def entries(self, path: str) -> list[str]:
        found = self._at(path)
        assert isinstance(found, dict)
        return sorted(found)

    def target(self, path: str) -> str:
        found = self._at(path)
        assert isinstance(found, str)
        return found


def layout(*mounts: tuple[str, str], read_only_root: bool = False, keep: tuple[str, ...] = ()) -> list[rootfs.Step]:
    wanted = [Mount(source=source, path=path, read_only=False) for source, path in mounts]
    kept = [Mount(source=path, path=path, read_only=True) for path in keep]
    return list(rootfs.layout(FakeHost(), wanted, keep=kept, devices=(), read_only_root=read_only_root))


def test_the_host_is_shown_read_only_and_links_stay_links():
    steps = layout()
    assert ("bind", "/etc", "/etc", "ro") in steps
    assert ("link", "/bin", "usr/bin") in steps
    assert ("proc", "/proc") in steps
    assert ("bind", "/dev/null", "/dev/null", "rw") in steps
    assert steps[-1] == ("seal", "")


def test_scratch_directories_are_the_containers_own():
    steps = layout()
    scratch = {step[1] for step in steps if step[0] == "tmpfs"}
    assert scratch == {"/dev/shm", "/run", "/tmp", "/var/tmp"}
    assert not any(step[:2] == ("bind", "/tmp") for step in steps)


def test_a_read_only_root_has_no_writable_scratch_but_shared_memory():
    steps = layout(read_only_root=True)
    assert ("tmpfs", "/tmp") not in steps
    assert ("tmpfs", "/dev/shm") in steps


def test_a_mount_on_an_existing_directory_lies_on_top_of_it():
    steps = layout(("/vol", "/usr/share/doc"))
    assert steps.index(("bind", "/usr", "/usr", "ro")) < steps.index(("bind", "/usr/share/doc", "/vol", "rw"))
    assert not any(step[0] == "tmpfs" and step[1].startswith("/usr") for step in steps)


def test_a_missing_top_level_path_is_made_in_our_own_root():
    assert ("bind", "/models", "/vol", "rw") in layout(("/vol", "/models"))


def test_a_missing_deep_path_replaces_its_parent_by_a_copy_of_entries():
    steps = layout(("/vol", "/etc/kvasir/config"))
    assert ("bind", "/etc", "/etc", "ro") not in steps
    assert ("bind", "/etc/hosts", "/etc/hosts", "ro") in steps
    assert ("bind", "/etc/ssl", "/etc/ssl", "ro") in steps
    assert ("bind", "/etc/kvasir/config", "/vol", "rw") in steps


def test_a_missing_path_below_a_shown_directory_gets_a_file_system_of_its_own():
    steps = layout(("/vol", "/usr/share/new/x"))
    assert ("bind", "/usr", "/usr", "ro") in steps
    assert ("tmpfs", "/usr/share") in steps
    assert ("bind", "/usr/share/doc", "/usr/share/doc", "ro") in steps
    assert ("seal", "/usr/share") in steps


def test_links_on_the_way_are_followed():
    steps = layout(("/vol", "/var/run/secrets/token"))
    assert ("bind", "/run/secrets/token", "/vol", "rw") in steps


def test_nested_mounts_come_after_their_parents():
    steps = layout(("/b", "/data/sub"), ("/a", "/data"))
    assert steps.index(("bind", "/data", "/a", "rw")) < steps.index(("bind", "/data/sub", "/b", "rw"))


def test_what_must_stay_visible_below_scratch_is_kept():
    assert ("bind", "/tmp/venv", "/tmp/venv", "ro") in layout(keep=("/tmp/venv",))


def test_what_must_stay_visible_lies_on_top_of_a_mount_above_it():
    steps = layout(("/vol", "/tmp"), keep=("/tmp/venv",))
    assert steps.index(("bind", "/tmp", "/vol", "rw")) < steps.index(("bind", "/tmp/venv", "/tmp/venv", "ro"))


def test_a_mount_in_what_must_stay_visible_lies_on_top():
    steps = layout(("/vol", "/tmp/venv/bin"), keep=("/tmp/venv",))
    assert steps.index(("bind", "/tmp/venv", "/tmp/venv", "ro")) < steps.index(("bind", "/tmp/venv/bin", "/vol", "rw"))


@pytest.mark.parametrize("path", ["/", "/proc/x"])
def test_impossible_mount_paths_are_errors(path: str):
    with pytest.raises(ValueError, match="cannot be mounted"):
        layout(("/vol", path))
