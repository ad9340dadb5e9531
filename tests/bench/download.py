"""How long `kvasir serve` takes from the last byte of its model until it is ready: `make bench-download`.

A hub on loopback sends one file of weights at a steady rate, or a registry an image with the checkpoint in one layer.
With --before the same is measured of another tree of this project, in turns.
"""

import argparse
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from fakes import ggufs
from fakes.api_process import api_process
from fakes.checkpoints import Shape, write
from kvasir_api import names
from kvasir_local.demo.hub_server import HubHandler, HubRepository, ServedHub, listening

NAME: Final = "org/name"
SHAPE: Final = Shape(hidden_size=1024, intermediate_size=2816, num_heads=16, num_kv_heads=4, head_dim=64)
KINDS: Final = ("safetensors", "gguf", "tar", "tar.gz")
"""The last two are layers of an image."""
LAYER: Final = "application/vnd.oci.image.layer.v1."
REAL: Final = (sys.executable, "-m", "kvasir_runtime", "serve")
PIECE: Final = 1 << 20


class SlowHub(HubHandler):
    """rate: bytes of a large file in each second. ended: when the last one was sent."""

    rate = 0.0
    ended = 0.0

    def reply(self, content: bytes, headers: Mapping[str, str], *, length: int = -1, status: int = 200) -> None:
        """In pieces, each at its time."""
        if len(content) < 2 * PIECE or self.command == "HEAD":
            return super().reply(content, headers, length=length, status=status)
        super().reply(b"", headers, length=len(content), status=status)
        began = time.monotonic()
        try:
            for start in range(0, len(content), PIECE):
                time.sleep(max(began + start / self.rate - time.monotonic(), 0.0))
                self.wfile.write(content[start : start + PIECE])
        except OSError:
            return None  # it was for the header
        type(self).ended = time.monotonic()
        return None


class SlowRegistry(SlowHub):
    """blobs: content by path."""

    blobs: ClassVar[Mapping[str, bytes]] = {}

    @classmethod
    def fields_of(cls, folder: Path, kind: str) -> dict[str, Any]:
        """Of a registry that has an image with a directory in one layer."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz" if kind == "tar.gz" else "w", **_level(kind)) as archive:
            archive.add(folder, "model")
        layer = stream.getvalue()
        digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
        media_type = LAYER + ("tar+gzip" if kind == "tar.gz" else "tar")
        manifest = {"layers": [{"mediaType": media_type, "digest": digest, "size": len(layer)}]}
        places = {"manifests/v1": json.dumps(manifest).encode(), f"blobs/{digest}": layer}
        return {"blobs": {f"/v2/{NAME}/{place}": content for place, content in places.items()}}

    def answer(self) -> None:
        """A manifest or a layer."""
        self.reply(self.blobs.get(self.path, b""), {}, status=200 if self.path in self.blobs else 404)


def _level(kind: str) -> dict[str, Any]:
    """Weights are hardly smaller with a higher one."""
    return {"compresslevel": 1} if kind == "tar.gz" else {}


def main() -> None:
    """One line of JSON for each start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", nargs="*", default=["safetensors", "gguf"], choices=KINDS)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--layers", type=int, default=16, help="of 45 MB each in safetensors, half in GGUF")
    parser.add_argument("--megabytes-per-second", type=float, default=30.0)
    parser.add_argument("--before", type=Path, help="root of the other tree, with its kernels built")
    options = parser.parse_args()
    trees = {"after": None} | ({"before": options.before} if options.before else {})
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-download-") as home:
        folder = write(Path(home) / "model", replace(SHAPE, num_layers=options.layers))
        for kind in options.files:
            fields, model = _served(folder, kind)
            for number in range(options.starts):
                for name, tree in trees.items():
                    seconds = measured(fields, model, tree, options.megabytes_per_second * 1e6)
                    print(json.dumps({"file": kind, "start": number, "tree": name, **seconds}), flush=True)


def _served(folder: Path, kind: str) -> tuple[dict[str, Any], str]:
    """What a server has of a checkpoint, and the model's name, in which {} is the server's address."""
    if kind in ("tar", "tar.gz"):
        return SlowRegistry.fields_of(folder, kind), f"oci://{{}}/{NAME}:v1"
    if kind == "gguf":
        own = folder.with_name("gguf")
        own.mkdir()
        file = ggufs.write(folder, own / "model.gguf", kind="F16")
        folder, model = own, f"{NAME}/{file.name}"
    else:
        model = NAME
    repository = HubRepository.of_folder(NAME, folder)
    return {"repository": repository, "served": ServedHub(commit=repository.commit)}, model


def measured(fields: Mapping[str, Any], model: str, tree: Path | None, rate: float) -> dict[str, float]:
    """Seconds until the last byte was sent, and from then on until /readyz says so."""
    kind = SlowRegistry if "blobs" in fields else SlowHub
    handler: Any = type("Handler", (kind,), {**fields, "rate": rate})
    parts = [str(tree / part) for part in ("runtime", "operator", "crds")] if tree else []
    own_tests = str(Path(__file__).parents[1])
    with listening(handler) as url, tempfile.TemporaryDirectory() as home:
        env = {
            "PYTHONPATH": os.pathsep.join((*parts, own_tests)),
            "HF_HOME": home,
            "HF_ENDPOINT": url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            names.ENV_MODEL_CACHE: home,
        }
        arguments = ("--device", "cpu", "--kv-cache-tokens", "4096", "--log-format", "json")
        given = model.format(url.removeprefix("http://"))
        began = time.monotonic()
        with api_process(given, *arguments, command=REAL, env=env, wait="listening") as server:
            server.until("ready", lambda: server.ask("/readyz", ops=True).status == 200, timeout_s=600)
            ready = time.monotonic()
    return {"download_s": round(handler.ended - began, 2), "then_ready_s": round(ready - handler.ended, 2)}


if __name__ == "__main__":
    main()
