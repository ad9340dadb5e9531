"""The facts of a served model that requests are checked against. Made once at the start of the server or of an LLM."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.parsing.formats import ParserNames
from kvasir_runtime.frontend.pooling.capabilities import Capabilities
from kvasir_runtime.frontend.sender import RequestSender
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.wire import EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """names: of the model. path: from which it was started, which is a name too. max_context: of prompt and answer
    together, in tokens. defaults: of sampling fields. hash_salt: the engine's, of the hashes of blocks.

    ready: the engine's facts; None where there is no engine. parsers: the formats of calls and of reasoning. instance:
    ids of chats begin with it, so that a gateway finds the process that writes one.

    Of the request at hand: sender; ignore, which is called with the name of a field of its body that has no effect with
    this model, and raises Refused where such fields are refused.
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    max_context: int
    capabilities: Capabilities = field(default_factory=Capabilities)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ready: EngineFacts | None = None
    parsers: ParserNames = field(default_factory=ParserNames)
    instance: str = ""
    path: str = ""
    hash_salt: bytes = field(default=b"", repr=False)
    sender: RequestSender = field(default_factory=RequestSender)
    ignore: Callable[[str], None] = lambda _: None


def served_name(name: str | None, profile: ModelProfile) -> str:
    """The name that a body has, or the first one where it has none. Raises Refused for a model that is not served."""
    if name is None:
        return profile.names[0]
    if name not in profile.names and name != profile.path:
        raise Refused(openai_errors.model_not_found(name))
    return name
