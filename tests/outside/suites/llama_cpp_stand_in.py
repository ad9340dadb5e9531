"""A pytest plugin that puts Kvasir in place of llama-server in llama.cpp's own tests: `-p llama_cpp_stand_in`.

A ServerProcess gets a server with our tiny model by the name and options that the test sets. The paths of OpenAI's API
that llama-server has at its root too are asked for under /v1.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import utils
from standing import StandingServers

SERVERS = StandingServers()
UNDER_V1 = ("/chat/completions", "/completions", "/models", "/responses")
OPENAI_NAMES = ("gpt-3.5-turbo-instruct", "gpt-4.1", "text-embedding-3-small", "test")
"""Of models, as its tests write them; llama-server reads none."""
ADDRESS = utils.ServerProcess.make_url


def start(self: utils.ServerProcess, timeout_seconds: int = 0) -> None:
    """A standing server with the options of this one."""
    names = (self.model_alias or "tinyllama-2", *OPENAI_NAMES)
    options = [part for name in names for part in ("--served-model-name", name)]
    if self.server_embeddings or self.server_reranking:
        options += ["--pooling", "mean"]
    if self.api_key:
        options += ["--api-key", self.api_key]
    server = SERVERS.serving(options)
    self.server_host, self.server_port = server.http


def make_url(self: utils.ServerProcess, path: str, *args: Any) -> str:
    """The address of a path."""
    found: str = ADDRESS(self, f"/v1{path}" if path.startswith(UNDER_V1) else path, *args)
    return found


utils.ServerProcess.start = start
utils.ServerProcess.stop = lambda _: None
utils.ServerProcess.make_url = make_url
utils.ServerPreset.load_all = staticmethod(lambda: None)


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    yield
    SERVERS.close()
