"""A pytest plugin that stands in for vLLM where vLLM's own tests of its server import it: `-p vllm_stand_in`.

`tests.utils` has a RemoteOpenAIServer that serves our tiny model by the names and options that a test gives. All else
of vLLM's, torch's and fastapi's are names whose use is an error, so that only what is asked over HTTP can pass.
"""

import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import anthropic
import numpy as np
import openai
import pytest
import transformers
from standing import MODEL, StandingServers

SAME = {"--api-key", "--root-path", "--tool-call-parser", "--reasoning-parser"}
"""Options of vLLM's that are ours too and that tests rely on. The others are about their models and devices."""
LENGTH = 2048
"""Of a context unless a test says so: random weights end an answer there that has no max_tokens."""
MAX_LENGTH = 8192
TIMEOUT_S = 300
"""Of a request: an answer without max_tokens fills a context of MAX_LENGTH."""
STOOD_IN = {"vllm", "torch", "fastapi"}
"""Packages that are not there."""
SERVERS = StandingServers()
PRETRAINED = transformers.AutoTokenizer.from_pretrained


def our_options(model_name: str, args: Sequence[Any]) -> list[str]:
    """Those of a server of vLLM in our terms; adapters of weights become names of the model."""
    given: list[list[str]] = []
    for part in map(str, args):
        if part.startswith("--"):
            given.append(part.split("=", 1))
        else:
            given[-1].append(part)
    names = [value for flag, *values in given if flag == "--served-model-name" for value in values] or [model_name]
    names += [value.partition("=")[0] for flag, *values in given if flag == "--lora-modules" for value in values]
    kept = [part for flag, *values in given if flag in SAME for part in (flag, *values)]
    lengths = [int(values[0]) for flag, *values in given if flag == "--max-model-len"]
    kept += ["--max-model-len", str(min(lengths[0] if lengths else LENGTH, MAX_LENGTH))]
    return kept + [part for name in names for part in ("--served-model-name", name)]


class RemoteOpenAIServer:
    """vLLM's class of this name, as far as its tests use it over HTTP."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self, model_name: str, vllm_serve_args: Sequence[Any] = (), *, env_dict: dict[str, str] | None = None, **_: Any
    ) -> None:
        key = (env_dict or {}).get("VLLM_API_KEY")
        keyed = ["--api-key", key] if key else []
        server = SERVERS.serving(our_options(model_name, [*vllm_serve_args, *keyed]))
        self.host, self.port = server.http
        self.process = server.process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The server stays for the next that has its options."""

    @property
    def url_root(self) -> str:
        """Where it is."""
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        """A path of it."""
        return "/".join([self.url_root, *parts])

    def get_client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's client."""
        return openai.OpenAI(**self._client(self.url_for("v1"), options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        """Its asynchronous one."""
        return openai.AsyncOpenAI(**self._client(self.url_for("v1"), options))

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        """Anthropic's client."""
        return anthropic.Anthropic(**self._client(self.url_root, options))

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        """Its asynchronous one."""
        return anthropic.AsyncAnthropic(**self._client(self.url_root, options))

    def _client(self, url: str, options: dict[str, Any]) -> dict[str, Any]:
        return {"base_url": url, "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": TIMEOUT_S, **options}


def tokenizer(*_: Any, **__: Any) -> Any:
    """Of the model that is served, whatever name a test gives."""
    return PRETRAINED(str(MODEL))


class ModelConfig:
    """Of the model that is served, as far as tests read it."""

    max_logprobs = 20

    def __init__(self, *_: Any, **__: Any) -> None:
        self._config = json.loads((MODEL / "config.json").read_text())

    def get_vocab_size(self) -> int:
        """The number of token ids."""
        size: int = self._config["vocab_size"]
        return size


KNOWN: dict[str, Any] = {
    "ModelConfig": ModelConfig,
    "iinfo": np.iinfo,
    "long": np.int64,
    "RemoteOpenAIServer": RemoteOpenAIServer,
    "VLLM_PATH": Path.cwd(),
    "ROCM_EXTRA_ARGS": [],
    "ROCM_ENV_OVERRIDES": {},
    "get_tokenizer": tokenizer,
    "hf_api": lambda: type("Hub", (), {"snapshot_download": staticmethod(lambda **_: "lora")}),
}


def unusable(name: str) -> type:
    """A class of vLLM's own."""

    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"{name} is vLLM itself")

    return type(name, (), {"__init__": refused})


class StandIn(ModuleType):
    """A module of which every name can be imported."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in KNOWN:
            KNOWN[name] = unusable(name)
        return KNOWN[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each module of vLLM's and of its tests' helpers."""

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """One of ours, or none."""
        first, second, *_ = [*fullname.split("."), ""]
        ours = first in STOOD_IN or (first == "tests" and second in {"utils", "conftest"})
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Empty."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run."""


sys.meta_path.insert(0, Finder())
transformers.AutoTokenizer.from_pretrained = tokenizer


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    yield
    SERVERS.close()
