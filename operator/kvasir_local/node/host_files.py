"""The host's file system for `rules/rootfs.py`: the only place where its layout reads real files."""

import os
import stat


class HostFiles:
    """Implements `rootfs.Host` with lstat; anything unreadable counts as absent."""

    def kind(self, path: str) -> str | None:
        """`dir`, `file` (also devices and sockets), `link`, or None."""
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return None
        return "link" if stat.S_ISLNK(mode) else "dir" if stat.S_ISDIR(mode) else "file"

    def entries(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when it cannot be read."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def target(self, path: str) -> str:
        """The target of a link."""
        return os.readlink(path)
