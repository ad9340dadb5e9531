"""One accepted request for text: what the engine is sent, and what its answers look like.

prepare.py makes it; the output processor, the serializers of the server and the offline API read it.
"""

from dataclasses import dataclass

from kvasir_runtime.frontend.choice_history import ChoiceHistory
from kvasir_runtime.frontend.parsing.answer_parser import ParserConfig
from kvasir_runtime.frontend.tool_results import ToolResultRenderer
from kvasir_runtime.wire import EngineRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """requests: one per choice that is sampled, in the order of their index.

    continuous_usage: every chunk has the counts so far. include_metrics: the answer has its times.
    num_choices: of each prompt that are shown, the best of those sampled. logprobs, prompt_logprobs: how many of the
    most likely tokens are shown at each position, -1 for no logprobs at all. echoes: texts of the prompts, or of a
    chat's last message, where they are repeated before the answers. continues: the answer continues the text of its
    prompt. only_prompt: the engine samples a token, but none was asked for. special: special tokens are shown.
    token_ids: they are shown too. parser: what is looked for in the answers of a chat. grammar_field: the field that
    requests their grammar. stop_ids: those that the body names. tool_results: renders the results of tools that are
    sent while the answer is written. created: unix seconds, 0 before it is admitted. histories: of a stream that
    another replica began, what its client has of each choice; else empty.
    """

    answer_id: str
    model: str
    chat: bool
    stream: bool
    include_usage: bool
    requests: tuple[EngineRequest, ...]
    num_prompts: int
    prompt_tokens: int
    stops: tuple[str, ...]
    include_stop: bool
    stop_ids: tuple[int, ...] = ()
    continuous_usage: bool = False
    include_metrics: bool = False
    num_choices: int = 1
    logprobs: int = -1
    prompt_logprobs: int = -1
    echoes: tuple[str, ...] = ()
    continues: bool = False
    only_prompt: bool = False
    special: bool = False
    token_ids: bool = False
    as_token_ids: bool = False
    parser: ParserConfig | None = None
    tool_results: ToolResultRenderer | None = None
    grammar_field: str = ""
    created: int = 0
    histories: tuple[ChoiceHistory, ...] = ()

    @property
    def is_beam_search(self) -> bool:
        """Whether each answer comes in one piece, and there may be fewer of them than requested."""
        return self.requests[0].beam is not None

    @property
    def num_drawn(self) -> int:
        """Choices sampled for each prompt."""
        return len(self.requests) // self.num_prompts
