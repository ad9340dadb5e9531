"""Images for a containerd whose client is a program of this file: it keeps its blobs and names in a JSON file."""

import hashlib
import json
import sys

import pytest

from kvasir_local.errors import StepFailedError
from kvasir_local.kubelet.containerd_images import ContainerdImages
from kvasir_local.progress import SilentProgress

CTR = """\
import json, pathlib, sys, tarfile
file = pathlib.Path(sys.argv[1])
state = json.loads(file.read_text())
match sys.argv[2:]:
    case ["images", "list"]:
        print("REF TYPE DIGEST SIZE PLATFORMS LABELS")
        for name, digest in state["images"].items():
            print(name, "application/vnd.oci.image.manifest.v1+json", digest, "1.0 MiB linux/amd64 -")
    case ["content", "get", digest]:
        print(state["blobs"][digest], end="")
    case ["containers", "list", "--quiet"]:
        print("\\n".join(state["containers"]))
    case ["images", "remove", "--sync", *names]:
        for name in names:
            del state["images"][name]
    case ["images", "import", "-"]:
        if state["full"]:
            sys.exit("no space left on device")
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            files = {member.name: archive.extractfile(member).read().decode() for member in archive if member.isfile()}
        state["imported"] = sorted(name for name in files if name.startswith("blobs/"))
        state["blobs"] |= {f"sha256:{name.rpartition('/')[2]}": files[name] for name in state["imported"]}
        for manifest in json.loads(files["index.json"])["manifests"]:
            parts = json.loads(state["blobs"][manifest["digest"]])
            assert all(part["digest"] in state["blobs"] for part in (parts["config"], *parts["layers"]))
            state["images"][manifest["annotations"]["io.containerd.image.name"]] = manifest["digest"]
file.write_text(json.dumps(state))
"""
BASE, LIBRARIES = "the base", "the libraries " * 1000


def digest_of(text):
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class Containerd:
    """The state of one containerd, and what brings images into it."""

    def __init__(self, directory):
        self.state_file, self.layout = directory / "state.json", directory / "layout"
        self.state = {"images": {}, "blobs": {}, "containers": [], "full": False}
        self.images = ContainerdImages([sys.executable, "-c", CTR, str(self.state_file)], progress=SilentProgress())

    @property
    def state(self):
        return json.loads(self.state_file.read_text())

    @state.setter
    def state(self, state):
        self.state_file.write_text(json.dumps(state))

    def bring(self, images):
        """images: layers by the name of each image; the digests of the blobs that were imported."""
        self.state |= {"imported": []}
        self.images.bring(list(images), layout=self.layout, write=lambda image, at: write(image, images[image], at))
        assert not self.layout.exists()
        return {"sha256:" + name.rpartition("/")[2] for name in self.state["imported"]}


def write(image, layers, layout):
    """As skopeo: a blob whose file is there is taken for written, with the size of that file."""

    def blob(text, *, again=False):
        path = layout / "blobs" / "sha256" / digest_of(text).removeprefix("sha256:")
        if again or not path.exists():
            path.write_text(text)
        return {"digest": digest_of(text), "size": path.stat().st_size}

    parts = {"config": blob(image, again=True), "layers": [blob(layer) for layer in layers]}
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = layout / "index.json"
    known = json.loads(index.read_text()) if index.exists() else {"manifests": []}
    manifest = blob(json.dumps(parts), again=True)
    known["manifests"].append({**manifest, "annotations": {"org.opencontainers.image.ref.name": image}})
    index.write_text(json.dumps(known))


@pytest.fixture
def containerd(tmp_path):
    return Containerd(tmp_path)


def test_layers_that_a_node_has_are_not_imported_again(containerd):
    first = containerd.bring({"localhost/a:1": [BASE, LIBRARIES, "code 1"]})
    assert {digest_of(BASE), digest_of(LIBRARIES), digest_of("code 1")} <= first
    second = containerd.bring({"localhost/a:2": [BASE, LIBRARIES, "code 2"], "localhost/b:1": [BASE]})
    assert digest_of("code 2") in second
    assert not second & {digest_of(BASE), digest_of(LIBRARIES), digest_of("code 1")}
    assert list(containerd.state["images"]) == ["localhost/a:1", "localhost/a:2", "localhost/b:1"]
    manifest = json.loads(containerd.state["blobs"][containerd.state["images"]["localhost/a:2"]])
    assert [layer["size"] for layer in manifest["layers"]] == [len(BASE), len(LIBRARIES), len("code 2")]


def test_an_image_that_a_node_has_is_not_written(containerd):
    containerd.bring({"localhost/a:1": [BASE]})
    containerd.images.bring(["localhost/a:1"], layout=containerd.layout, write=lambda *_: pytest.fail("written"))


def test_a_layout_of_a_killed_run_is_of_no_consequence(containerd):
    containerd.layout.mkdir()
    (containerd.layout / "index.json").write_text("{")
    assert digest_of(BASE) in containerd.bring({"localhost/a:1": [BASE]})


def test_an_import_that_fails_is_named_with_the_words_of_the_client(containerd):
    containerd.state |= {"full": True}
    with pytest.raises(StepFailedError, match=r"localhost/a:1 could not be imported:\n *no space left on device"):
        containerd.bring({"localhost/a:1": [BASE]})
    assert not containerd.layout.exists()


def test_images_that_no_pod_needs_are_removed_where_there_is_no_container(containerd):
    containerd.bring({"localhost/a:1": [BASE, "1"], "localhost/a:2": [BASE, "2"], "localhost/b:1": [BASE]})
    state = containerd.state
    ids = {f"sha256:{name[-3:]}": digest for name, digest in state["images"].items()}  # as a kubelet's containerd names
    containerd.state = {**state, "images": state["images"] | ids, "containers": ["c"]}
    containerd.images.keep({"localhost/a:2", "localhost/b:1"})
    assert containerd.state["images"] == state["images"] | ids
    containerd.state |= {"containers": []}
    containerd.images.keep({"localhost/a:2", "localhost/b:1"})
    assert list(containerd.state["images"]) == ["localhost/a:2", "localhost/b:1", "sha256:a:2", "sha256:b:1"]
