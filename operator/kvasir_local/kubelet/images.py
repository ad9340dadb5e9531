"""Builds the images of `images/` without a registry. Called by `cluster`; `containerd_images` brings them to nodes.

buildah builds them in a chroot, on a base of Debian bookworm that mmdebstrap makes and that has the name which our
Dockerfiles' FROM has. A tag is the hash of what is built, so that nothing is built or imported twice.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir_api import names
from kvasir_local import locks, processes
from kvasir_local.errors import StepFailedError
from kvasir_local.kubelet import commands, mounts
from kvasir_local.progress import Progress

REGISTRY: Final = "localhost/"
"""Before the names of all images that are built here, as a registry's address is before others."""
PAUSE: Final = f"{REGISTRY}kvasir-pause:1"
"""What holds the network namespace of a pod: containerd's sandbox image."""
BASE: Final = "python:3.11-slim"
"""In our Dockerfiles; a test compares."""
FILES: Final = {
    names.IMAGE_OPERATOR: "operator",
    names.IMAGE_GATEWAY: "gateway",
    names.IMAGE_RUNTIME_CPU: "runtime-cpu",
}
"""Images that a cluster on processors needs, and their files in images/."""

_SUITE: Final = "bookworm"
_PACKAGES: Final = "python3,python3-venv,python3-pip,ca-certificates"
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_CONTEXT: Final = (
    "constraints.txt",
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "LICENSE",
    "crds",
    "operator",
    "runtime",
    "images/sbom.py",
)
"""What .dockerignore lets into a build; a test compares."""
_LARGE: Final = ("constraints.txt", "runtime/kvasir_runtime/kernels/cpu")
"""What the layers that take minutes are made of: libraries by their pins, and kernels by a compiler."""
_BASE_FILE: Final = """\
FROM scratch
ADD base.tar /
# apt's own user may not open /dev/null in a chroot.
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && ln -sf python3 /usr/bin/python \\
 && echo 'APT::Sandbox::User "root";' >/etc/apt/apt.conf.d/90chroot
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt UV_SYSTEM_CERTS=1
"""
_PAUSE_FILE: Final = f'FROM {BASE}\nENTRYPOINT ["/bin/sleep", "infinity"]\n'
_BUILD_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """names: complete, with tags, in the order of their import; tag: that of our own images."""

    names: tuple[str, ...]
    tag: str


def stored(image: str) -> str:
    """Its name in the builder's store and in nodes: of REGISTRY, where others name none."""
    return image if image.startswith(REGISTRY) else f"{REGISTRY}{image}"


def tag_of(checkout: Path) -> str:
    """A hash of everything that our images are built from: the same files have the same tag."""
    return f"local-{_digest(checkout, _inputs(checkout, _CONTEXT))[:12]}"


def large_layers_of(checkout: Path) -> str:
    """A hash of everything that the layers of _LARGE are built from."""
    return _digest(checkout, _inputs(checkout, _LARGE))


class ImageBuilder:
    """Builds into a store of its own, below `store`; `checkout` has images/ and what they copy.

    The store is the user's, so that every checkout has the layers of the others: build and write while it is `held`.
    """

    def __init__(self, *, store: Path, checkout: Path, progress: Progress) -> None:
        self._store, self._checkout, self._progress = store, checkout, progress
        self._large = store / "large-layers.made"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No other process builds, imports or removes images of this store. Nothing of it is mounted before and after,
        neither by a process that was killed nor by skopeo, which leaves the store mounted on itself."""
        self._store.mkdir(parents=True, exist_ok=True)
        waiting = f"another process builds or imports images in {self._store}"
        with locks.held(self._store / ".lock", progress=self._progress, waiting=waiting):
            self._unmount()
            try:
                yield
            finally:
                self._unmount()

    def lacking(self) -> list[str]:
        """What a build would make that takes minutes; empty where it makes layers of the project's code alone."""
        if self._large.exists() and self._large.read_text() == large_layers_of(self._checkout):
            return []
        return [f"images with the libraries and kernels of {self._checkout}"]

    def build(self, binaries: Mapping[str, Path]) -> ImageSet:
        """Builds what is missing. StepFailedError with the end of the log of what failed.

        binaries: images of one static program of others, by the name that manifests have, with its version.
        """
        tag = tag_of(self._checkout)
        self._large.unlink(missing_ok=True)
        self._base()
        self._small(PAUSE, _PAUSE_FILE, {})
        for image, binary in binaries.items():
            self._small(image, _binary_file(binary.name), {binary.name: binary})
        for image, file in FILES.items():
            wanted = f"{image}:{tag}"
            if not self._has(wanted):
                self._bud(wanted, self._checkout / "images" / f"{file}.Dockerfile", self._checkout, f"VERSION={tag}")
                self._drop_others(image, wanted)
        self._large.write_text(large_layers_of(self._checkout))
        built = (PAUSE, *binaries, *(f"{image}:{tag}" for image in FILES))
        return ImageSet(names=tuple(map(stored, built)), tag=tag)

    def write(self, image: str, layout: Path) -> None:
        """Writes an image of `build` into an OCI layout under its name. StepFailedError.

        Without compression, so that a layer has the digest by which containerd knows it.
        """
        source = f"containers-storage:[overlay@{self._store / 'storage'}+{self._store / 'run'}]{image}"
        target = f"oci:{layout}:{image}"
        command = ["skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", source, target]
        self._run(command, f"writing {image}")

    def _unmount(self) -> None:
        for path in mounts.below(self._store):
            mounts.unmount(path)

    def _base(self) -> None:
        made = self._store / "base.made"
        if self._has(BASE) and made.exists() and made.read_text() == _BASE_FILE:
            return
        self._run([*self._buildah(), "rmi", "--all", "--force"], "removing images of another base")
        work = self._fresh("base")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", _SUITE]
        self._run([*command, str(work / "base.tar")], f"making the base image of {_SUITE}")
        shutil.copyfile(_CERTIFICATES, work / "ca-certificates.crt")
        (work / "Dockerfile").write_text(_BASE_FILE)
        self._bud(BASE, work / "Dockerfile", work)
        made.write_text(_BASE_FILE)
        shutil.rmtree(work)

    def _small(self, name: str, text: str, files: dict[str, Path]) -> None:
        if self._has(name):
            return
        work = self._fresh("small")
        for target, source in files.items():
            shutil.copyfile(source, work / target)
            (work / target).chmod(0o755)
        (work / "Dockerfile").write_text(text)
        self._bud(name, work / "Dockerfile", work)
        shutil.rmtree(work)

    def _bud(self, name: str, file: Path, context: Path, *arguments: str) -> None:
        command = [*self._buildah(), "bud", "--pull-never", "--layers", f"--tag={stored(name)}"]
        command += [*(f"--build-arg={argument}" for argument in arguments), f"--file={file}", str(context)]
        self._run(command, f"building {name}")

    def _drop_others(self, image: str, kept: str) -> None:
        """Images of other contents under this name, after the build: layers of no image leave with them."""
        listed = commands.output(
            [*self._buildah(), "images", "--format={{.Name}}:{{.Tag}}"], self._environment()
        ).split()
        for name in listed:
            if name.startswith(f"{stored(image)}:") and name != stored(kept):
                self._run([*self._buildah(), "rmi", name], f"removing {name}")

    def _has(self, name: str) -> bool:
        command = [*self._buildah(), "inspect", "--type=image", "--format={{.FromImageID}}", stored(name)]
        return commands.answer(command, self._environment()).returncode == 0

    def _run(self, command: list[str], what: str) -> None:
        self._progress.waiting(f"{what}…")
        log = self._store / "build.log"
        with log.open("wb") as stream:
            try:
                result = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    check=False,
                    timeout=_BUILD_TIMEOUT_S,
                    env=self._environment(),
                )
            except subprocess.TimeoutExpired:
                raise StepFailedError(
                    f"{what} took over {_BUILD_TIMEOUT_S:g} s:\n{processes.tail(log, lines=25)}"
                ) from None
        if result.returncode != 0:
            raise StepFailedError(f"{what} failed:\n{processes.tail(log, lines=25)}")
        self._progress.done(what)

    def _fresh(self, name: str) -> Path:
        work = self._store / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        return work

    def _buildah(self) -> list[str]:
        roots = [f"--root={self._store / 'storage'}", f"--runroot={self._store / 'run'}"]
        return ["buildah", *roots, "--storage-driver=overlay"]

    def _environment(self) -> dict[str, str]:
        temporary = self._store / "tmp"
        temporary.mkdir(exist_ok=True)
        return {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(temporary)}


def _binary_file(name: str) -> str:
    return f'FROM {BASE}\nCOPY {name} /usr/local/bin/{name}\nENTRYPOINT ["/usr/local/bin/{name}"]\n'


def _digest(checkout: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(checkout)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _inputs(checkout: Path, context: Sequence[str]) -> Iterator[Path]:
    """Files and those below directories, sorted, without what .dockerignore keeps out of a build, and the
    Dockerfiles."""
    for path in (*(checkout / name for name in context), *sorted((checkout / "images").glob("*.Dockerfile"))):
        found = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
        yield from (item for item in found if "__pycache__" not in item.parts and item.suffix != ".so")
