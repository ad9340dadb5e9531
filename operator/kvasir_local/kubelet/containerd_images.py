"""Brings images into a node's containerd, but for the layers that it has, and removes those that no pod needs.

Called by `cluster`. An OCI image layout carries them. A blob that containerd has is in the layout as a file of its size
without content: skopeo takes it for written, and the archive for containerd leaves it out.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvasir_local import processes
from kvasir_local.errors import StepFailedError
from kvasir_local.kubelet import commands
from kvasir_local.progress import Progress

IMAGE_NAME: Final = "io.containerd.image.name"
"""The annotation by which containerd names an image that it imports."""
_REF_NAME: Final = "org.opencontainers.image.ref.name"
_BLOBS: Final = "blobs/sha256"
_TIMEOUT_S: Final = 1800.0


class ContainerdImages:
    """The images of one containerd, by the beginning of a command line of its client."""

    def __init__(self, ctr: Sequence[str], *, progress: Progress) -> None:
        self._ctr, self._progress = ctr, progress

    def bring(self, images: Sequence[str], *, layout: Path, write: Callable[[str, Path], None]) -> None:
        """Imports those of the images that are missing; complete names, such as `localhost/kvasir-operator:1`.

        layout: a directory that ends with the call; write: writes one image into the layout, under its name.
        StepFailedError.
        """
        known = self._digests()
        missing = [image for image in images if image not in known]
        if not missing:
            return
        present = self._blobs(set(known.values()))
        shutil.rmtree(layout, ignore_errors=True)
        stand_in(layout, present)
        try:
            for image in missing:
                write(image, layout)
            for_containerd(layout, present)
            self._import(layout, missing)
        finally:
            shutil.rmtree(layout)

    def keep(self, images: Collection[str]) -> None:
        """Removes every other image, with layers that no image needs, where there is no container."""
        if commands.output([*self._ctr, "containers", "list", "--quiet"]).split():
            return
        known = self._digests()
        kept = {digest for name, digest in known.items() if name in images}
        # A kubelet's containerd names each image by its configuration too.
        if unused := sorted(name for name, digest in known.items() if digest not in kept):
            commands.output([*self._ctr, "images", "remove", "--sync", *unused])
            tagged = [name for name in unused if not name.startswith("sha256:")]
            self._progress.done(f"removed {len(tagged)} images that no pod needs")

    def _digests(self) -> dict[str, str]:
        """Digests of manifests by the names of their images."""
        rows = [line.split() for line in commands.output([*self._ctr, "images", "list"]).splitlines()[1:]]
        return {row[0]: row[2] for row in rows}

    def _blobs(self, manifests: Collection[str]) -> dict[str, int]:
        """Sizes in bytes of the blobs of images by their digests. They stay while their images do."""
        found: dict[str, int] = {}
        for digest in manifests:
            text = commands.output([*self._ctr, "content", "get", digest])
            manifest = json.loads(text)
            found[digest] = len(text.encode())
            for part in (manifest.get("config"), *manifest.get("layers", ())):
                if part is not None:
                    found[part["digest"]] = part["size"]
        return found

    def _import(self, layout: Path, images: Sequence[str]) -> None:
        self._progress.waiting(f"importing {', '.join(images)}…")
        started, log = time.monotonic(), layout.with_suffix(".log")
        parts = [path.name for path in layout.iterdir()]
        with (
            log.open("wb") as stream,
            subprocess.Popen(["tar", "--create", f"--directory={layout}", *parts], stdout=subprocess.PIPE) as archive,
        ):
            try:
                code = subprocess.run(
                    [*self._ctr, "images", "import", "-"],
                    stdin=archive.stdout,
                    stdout=stream,
                    stderr=stream,
                    check=False,
                    timeout=_TIMEOUT_S,
                ).returncode
            except subprocess.TimeoutExpired:
                archive.kill()
                raise StepFailedError(f"importing {', '.join(images)} took over {_TIMEOUT_S:g} s") from None
            finally:
                if archive.stdout is not None:
                    archive.stdout.close()
        if code != 0 or archive.returncode != 0:
            raise StepFailedError(f"{', '.join(images)} could not be imported:\n{processes.tail(log)}")
        size = sum(path.stat().st_size for path in layout.rglob("*"))
        seconds = time.monotonic() - started
        self._progress.done(f"imported {', '.join(images)}: {size / 1e6:.0f} MB in {seconds:.1f} s")


def stand_in(layout: Path, blobs: Mapping[str, int]) -> None:
    """Makes the directory of a layout, with blobs by digest and size that have no content and take no disk."""
    (layout / _BLOBS).mkdir(parents=True)
    for digest, size in blobs.items():
        with _blob(layout, digest).open("wb") as file:
            file.truncate(size)


def for_containerd(layout: Path, blobs: Collection[str]) -> None:
    """Removes the blobs of `stand_in`, and names each image for containerd as its reference in the layout."""
    for digest in blobs:
        _blob(layout, digest).unlink()
    file = layout / "index.json"
    index = json.loads(file.read_text())
    for manifest in index["manifests"]:
        annotations = manifest["annotations"]
        annotations[IMAGE_NAME] = annotations.pop(_REF_NAME)
    file.write_text(json.dumps(index))


def _blob(layout: Path, digest: str) -> Path:
    return layout / _BLOBS / digest.removeprefix("sha256:")
