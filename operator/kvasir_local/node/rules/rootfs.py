"""Lays out a container's root directory as mount steps for `container_shim`: the host read-only, mounts on top.

A mount path that the host does not have is never created on the host: its parent becomes a fresh directory that holds
the host's entries one by one. /tmp, /var/tmp, /run and /dev are the container's own. Files are looked at through
`Host`, so this is pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Protocol

Step = tuple[str, ...]
"""("dir"|"tmpfs"|"proc"|"seal"|"file", target) or ("link", target, to) or ("bind", target, source, "ro"|"rw")."""

DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
SCRATCH: Final = ("/tmp", "/var/tmp", "/run")
MAX_LINKS: Final = 40


class Host(Protocol):
    """The host's file system, as far as the layout must know it. Paths are absolute; links are not followed."""

    def kind(self, path: str) -> str | None:
        """`dir`, `file`, `link`, or None when nothing is there."""

    def entries(self, path: str) -> list[str]:
        """Names in a directory."""

    def target(self, path: str) -> str:
        """What a link says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host directory or file shown at a path of the container. is_file: the source is a file."""

    source: str
    path: str
    read_only: bool
    is_file: bool = False


@dataclass(slots=True)
class _Dir:
    """A directory of our own; scratch ones are writable, others hold only mount points."""

    scratch: bool = False
    children: dict[str, "_Entry"] = field(default_factory=dict)


@dataclass(slots=True)
class _Bind:
    """A host path; `through` means that the parent's bind shows it already."""

    source: str
    read_only: bool = True
    is_file: bool = False
    through: bool = False
    children: dict[str, "_Entry"] = field(default_factory=dict)


@dataclass(slots=True)
class _Link:
    to: str


@dataclass(slots=True)
class _Proc:
    pass


_Entry = _Dir | _Bind | _Link | _Proc


def layout(
    host: Host, mounts: Iterable[Mount], *, keep: Iterable[Mount], devices: Iterable[str], read_only_root: bool
) -> tuple[Step, ...]:
    """Steps that build the root below an empty tmpfs, parents before children.

    keep: host paths that must stay visible though a fresh directory or a mount hides them (interpreter, resolv.conf).
    devices: further device files by host path. read_only_root: /tmp, /var/tmp and /run are not writable.
    """
    root = _host_dir(host, "/")
    root.children |= {"proc": _Proc(), "dev": _dev(devices)}
    for path in SCRATCH:
        _put(host, root, path, _Dir(scratch=not read_only_root))
    # What is kept lies on top of a mount above it; a mount at the same path or below lies on top of what is kept.
    for mount in sorted((*keep, *mounts), key=lambda mount: PurePosixPath(mount.path).parts):
        _put(host, root, mount.path, _Bind(mount.source, mount.read_only, mount.is_file))
    return tuple(_steps(root, "", parent_is_ours=True))


def _host_dir(host: Host, path: str) -> _Dir:
    found = _Dir()
    for name in host.entries(path):
        here = f"{path.rstrip('/')}/{name}"
        match host.kind(here):
            case "link":
                found.children[name] = _Link(host.target(here))
            case "dir" | "file" as kind:
                found.children[name] = _Bind(here, is_file=kind == "file")
    return found


def _dev(devices: Iterable[str]) -> _Dir:
    found = _Dir(children={name: _Bind(f"/dev/{name}", read_only=False, is_file=True) for name in DEVICES})
    found.children |= {"shm": _Dir(scratch=True), "pts": _Bind("/dev/pts", read_only=False), "ptmx": _Link("pts/ptmx")}
    found.children |= {"fd": _Link("/proc/self/fd")}
    found.children |= {
        name: _Link(f"/proc/self/fd/{number}") for number, name in enumerate(("stdin", "stdout", "stderr"))
    }
    for path in devices:
        here = found
        *parents, last = PurePosixPath(path).relative_to("/dev").parts
        for parent in parents:
            below = here.children.setdefault(parent, _Dir())
            here = below if isinstance(below, _Dir) else here
        here.children[last] = _Bind(path, read_only=False, is_file=True)
    return found


def _put(host: Host, root: _Dir, path: str, entry: _Entry) -> None:
    """Hang an entry into the tree; links on the way are followed, missing directories become our own."""
    for _ in range(MAX_LINKS):
        moved = _put_once(host, root, path, entry)
        if moved is None:
            return
        path = moved
    raise ValueError(f"too many links on the way to mount path {path}")


def _put_once(host: Host, root: _Dir, path: str, entry: _Entry) -> str | None:
    """None when done, else the path to try instead because a link was met."""
    parts = _clean(path)
    if not parts:
        raise ValueError("a volume cannot be mounted at /")
    here: _Dir | _Bind = root
    parent: _Dir | _Bind = root
    for depth, part in enumerate(parts):
        if isinstance(here, _Bind) and part not in here.children:
            source = f"{here.source.rstrip('/')}/{part}"
            kind = host.kind(source)
            if kind is None and here.read_only:
                fresh = _host_dir(host, here.source)
                fresh.children |= here.children
                parent.children[parts[depth - 1]] = here = fresh
            elif kind == "link":
                here.children[part] = _Link(host.target(source))
            elif kind is not None:
                here.children[part] = _Bind(source, here.read_only, kind == "file", through=True)
        below = here.children.get(part)
        if isinstance(below, _Link):
            return str(PurePosixPath("/", *parts[:depth], below.to, *parts[depth + 1 :]))
        if isinstance(below, _Proc):
            raise ValueError(f"a volume cannot be mounted at {path}")
        if depth == len(parts) - 1:
            here.children[part] = entry
            return None
        if not isinstance(below, _Dir | _Bind) or (isinstance(below, _Bind) and below.is_file):
            below = here.children[part] = (
                _Dir() if isinstance(here, _Dir) else _Bind(f"{here.source}/{part}", False, through=True)
            )
        parent, here = here, below
    return None


def _clean(path: str) -> list[str]:
    parts: list[str] = []
    for part in PurePosixPath(path).parts[1:]:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return parts


def _steps(entry: _Dir | _Bind, at: str, *, parent_is_ours: bool) -> Iterator[Step]:
    if isinstance(entry, _Dir) and at:
        separate = entry.scratch or not parent_is_ours
        if parent_is_ours:
            yield ("dir", at)
        if separate:
            yield ("tmpfs", at)
    for name, child in entry.children.items():
        here = f"{at}/{name}"
        match child:
            case _Link(to):
                if isinstance(entry, _Dir):
                    yield ("link", here, to)
            case _Proc():
                yield from (("dir", here), ("proc", here))
            case _Dir():
                yield from _steps(child, here, parent_is_ours=isinstance(entry, _Dir))
            case _Bind():
                if not child.through:
                    yield ("file" if child.is_file else "dir", here)
                    yield ("bind", here, child.source, "ro" if child.read_only else "rw")
                yield from _steps(child, here, parent_is_ours=False)
    if isinstance(entry, _Dir) and not entry.scratch and (not at or not parent_is_ours):
        yield ("seal", at)
