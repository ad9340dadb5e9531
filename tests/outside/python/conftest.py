"""What the tests of clients share. They run in the environment of requirements.txt, which has none of our packages.

KVASIR_URL: a server with a tiny model of random weights. KVASIR_SCRIPTED_URL: one whose engine answers with what
KVASIR_SCRIPT, a file, has as ids of the model's tokenizer; both serve the model `tiny` from the folder KVASIR_MODEL.
"""

import json
import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

URL = os.environ["KVASIR_URL"]
SCRIPTED_URL = os.environ["KVASIR_SCRIPTED_URL"]
DEADLINE_S = 60


@pytest.fixture
def url() -> str:
    return URL


@pytest.fixture
def model_folder() -> Path:
    return Path(os.environ["KVASIR_MODEL"])


@pytest.fixture
def scripted_url() -> str:
    return SCRIPTED_URL


@pytest.fixture
def says() -> Callable[[str], None]:
    """What the engine at scripted_url answers from now on."""
    encoder = Tokenizer.from_file(os.fspath(Path(os.environ["KVASIR_MODEL"]) / "tokenizer.json"))

    def write(text: str) -> None:
        Path(os.environ["KVASIR_SCRIPT"]).write_text(json.dumps(encoder.encode(text).ids))

    return write


@pytest.fixture
def idle(url) -> Callable[[], None]:
    """Waits until no request runs on the server of random weights."""

    def wait() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while json.load(urllib.request.urlopen(f"{url}/load"))["server_load"]:
            assert time.monotonic() < deadline, "a request runs on"
            time.sleep(0.02)

    return wait
