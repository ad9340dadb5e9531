"""The formats in which models write calls and reasoning, declared once: for parsers, grammars and documentation.

A format of calls is one or more rows of fixed texts and slots. White space in a row is how the model was trained to
write it; any is read. The chat template of a model shows which format it has. Pure.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from kvasir_runtime.frontend.parsing.call_fields import (
    ArgumentsField,
    CallIdField,
    JsonCallField,
    KeywordsField,
    NameField,
    NumberedNameField,
    ParametersField,
    Slot,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """One way to write calls. begin: the mark that opens a section ("" is the answer's beginning), and what follows.

    item: one call. between: what stands between calls of one section; None where a section has one call. end: what
    closes it. again: what stands between two sections.
    """

    begin: tuple[str, ...]
    item: tuple[str | Slot, ...]
    between: str | None = None
    end: str = ""
    again: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """rows: the first is how calls are written where they are guided. signs: sets of texts, any of which identifies
    the format when all of it is in the chat template. models: whose it is."""

    rows: tuple[CallFormat, ...]
    signs: tuple[frozenset[str], ...]
    models: str
    nine: bool = False
    """Ids of calls have nine letters and digits, as the template requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningTags:
    """The tags around reasoning, in several spellings. implied: an answer without an opening tag begins with
    reasoning."""

    begin: tuple[str, ...]
    end: tuple[str, ...]
    signs: tuple[frozenset[str], ...]
    models: str
    implied: bool = False


XML: Final = ParametersField(begin="<parameter=", named=">\n", close="\n</parameter>\n", end="</function>")

ARG_KEYS: Final = ParametersField(
    begin="<arg_key>", named="</arg_key>\n<arg_value>", close="</arg_value>\n", end="</tool_call>"
)
TIGHT_ARG_KEYS: Final = ParametersField(
    begin="<arg_key>", named="</arg_key><arg_value>", close="</arg_value>", end="</tool_call>"
)
INVOKE: Final = ParametersField(begin='<parameter name="', named='">', close="</parameter>\n", end="</invoke>")

TOOLS: Final[dict[str, ToolFormat]] = {
    "glm47": ToolFormat(
        rows=(CallFormat(begin=("<tool_call>",), item=(NameField(), TIGHT_ARG_KEYS), again="\n"),),
        signs=(frozenset({"</arg_key><arg_value>"}),),
        models="GLM 4.7 and 5",
    ),
    "glm45": ToolFormat(
        rows=(CallFormat(begin=("<tool_call>",), item=(NameField(), "\n", ARG_KEYS), again="\n"),),
        signs=(frozenset({"<arg_key>", "<arg_value>"}),),
        models="GLM 4.5 and 4.6",
    ),
    "kimi_k2": ToolFormat(
        rows=(
            CallFormat(
                begin=("<|tool_calls_section_begin|>",),
                item=(
                    "<|tool_call_begin|>",
                    NumberedNameField(),
                    "<|tool_call_argument_begin|>",
                    ArgumentsField(),
                    "<|tool_call_end|>",
                ),
                between="",
                end="<|tool_calls_section_end|>",
            ),
        ),
        signs=(frozenset({"<|tool_calls_section_begin|>"}),),
        models="Kimi K2, its Thinking and K2.5",
    ),
    "minimax_m2": ToolFormat(
        rows=(
            CallFormat(
                begin=("<minimax:tool_call>",),
                item=('\n<invoke name="', NameField(), '">\n', INVOKE),
                between="\n",
                end="\n</minimax:tool_call>",
            ),
        ),
        signs=(frozenset({"<minimax:tool_call>"}),),
        models="MiniMax M2",
    ),
    "minimax": ToolFormat(
        rows=(CallFormat(begin=("<tool_calls>", "\n"), item=(JsonCallField(),), between="\n", end="\n</tool_calls>"),),
        signs=(frozenset({"<tool_calls>", "</tool_calls>"}),),
        models="MiniMax M1",
    ),
    "granite": ToolFormat(
        rows=(
            CallFormat(begin=("<|tool_call|>", "["), item=(JsonCallField(),), between=", ", end="]"),
            CallFormat(begin=("<tool_call>", "["), item=(JsonCallField(),), between=", ", end="]"),
        ),
        signs=(frozenset({"<|tool_call|>"}),),
        models="Granite 3; Granite 4 has that of `hermes`",
    ),
    "qwen3_coder": ToolFormat(
        rows=(
            CallFormat(
                begin=("<tool_call>", "\n<function="),
                item=(NameField(), ">\n", XML),
                end="\n</tool_call>",
                again="\n",
            ),
            CallFormat(begin=("<function=",), item=(NameField(), ">\n", XML), end="\n</tool_call>"),
        ),
        signs=(frozenset({"<function=", "<parameter="}),),
        models="Qwen3-Coder",
    ),
    "hermes": ToolFormat(
        rows=(CallFormat(begin=("<tool_call>",), item=("\n", JsonCallField()), end="\n</tool_call>", again="\n"),),
        signs=(frozenset({"<tool_call>"}),),
        models="Qwen2.5, Qwen3, Hermes",
    ),
    "mistral": ToolFormat(
        rows=(
            CallFormat(begin=("[TOOL_CALLS]",), item=(NameField(), "[ARGS]", ArgumentsField()), again=""),
            CallFormat(
                begin=("[TOOL_CALLS]",), item=(NameField(), "[CALL_ID]", CallIdField(), "[ARGS]", ArgumentsField())
            ),
            CallFormat(begin=("[TOOL_CALLS]",), item=(NameField(), ArgumentsField())),
            CallFormat(begin=("[TOOL_CALLS]", "["), item=(JsonCallField(),), between=", ", end="]"),
        ),
        signs=(frozenset({"[TOOL_CALLS]", "[ARGS]"}),),
        models="Mistral, from tokenizer v11 on",
        nine=True,
    ),
    "mistral_v3": ToolFormat(
        rows=(CallFormat(begin=("[TOOL_CALLS]", " ["), item=(JsonCallField(),), between=", ", end="]"),),
        signs=(frozenset({"[TOOL_CALLS]"}),),
        models="Mistral and Mixtral, tokenizers v3 and v7",
        nine=True,
    ),
    "deepseek_v3": ToolFormat(
        rows=(
            CallFormat(
                begin=("<｜tool▁calls▁begin｜>",),
                item=(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                    NameField(),
                    "\n```json\n",
                    ArgumentsField(),
                    "\n```<｜tool▁call▁end｜>",
                ),
                between="\n",
                end="<｜tool▁calls▁end｜>",
            ),
        ),
        signs=(frozenset({"<｜tool▁calls▁begin｜>", "```json"}),),
        models="DeepSeek V3 and R1",
    ),
    "deepseek_v31": ToolFormat(
        rows=(
            CallFormat(
                begin=("<｜tool▁calls▁begin｜>",),
                item=("<｜tool▁call▁begin｜>", NameField(), "<｜tool▁sep｜>", ArgumentsField(), "<｜tool▁call▁end｜>"),
                between="",
                end="<｜tool▁calls▁end｜>",
            ),
        ),
        signs=(frozenset({"<｜tool▁calls▁begin｜>"}),),
        models="DeepSeek V3.1",
    ),
    "pythonic": ToolFormat(
        rows=(
            CallFormat(begin=("", "["), item=(KeywordsField(),), between=", ", end="]"),
            CallFormat(begin=("<|python_start|>", "["), item=(KeywordsField(),), between=", ", end="]<|python_end|>"),
        ),
        signs=(frozenset({"<|python_start|>"}),),
        models="Llama 4",
    ),
    "llama3_json": ToolFormat(
        rows=(
            CallFormat(begin=("",), item=(JsonCallField("parameters"),), between="; "),
            CallFormat(begin=("<|python_tag|>",), item=(JsonCallField("parameters"),), between="; "),
        ),
        signs=(frozenset({"<|python_tag|>"}), frozenset({"Environment: ipython"})),
        models="Llama 3.1, 3.2 and 3.3",
    ),
}
"""By the name that --tool-call-parser takes; the first whose signs are in the template is taken for auto."""

AUTO: Final = "auto"
NONE: Final = "none"
HARMONY: Final = "gpt_oss"
"""The format of gpt-oss: channels instead of tags, for calls and reasoning together, with a parser of its own."""
HARMONY_SIGNS: Final = frozenset({"<|channel|>", "<|message|>"})

REASONING: Final[dict[str, ReasoningTags]] = {
    "mistral": ReasoningTags(
        begin=("[THINK]",), end=("[/THINK]",), signs=(frozenset({"[THINK]"}),), models="Magistral"
    ),
    "deepseek_r1": ReasoningTags(
        begin=("<think>",),
        end=("</think>",),
        signs=(frozenset({"</think>", "<｜Assistant｜>"}),),
        models="DeepSeek R1 and V3.1, and what was distilled from R1",
        implied=True,
    ),
    "qwen3": ReasoningTags(
        begin=("<think>",), end=("</think>",), signs=(frozenset({"<think>"}), frozenset({"</think>"})), models="Qwen3"
    ),
    "granite": ReasoningTags(
        begin=("Here's my thought process:", "Here is my thought process:"),
        end=("Here's my response:", "Here is my response:"),
        signs=(frozenset({"thought process", "response"}),),
        models="Granite 3.2",
    ),
}
"""By the name that --reasoning-parser takes; the first whose signs are in the template is taken for auto."""


class ParserNames(NamedTuple):
    """Names of the formats of calls and of reasoning; "" for none that is known, NONE for none that is read."""

    tools: str = ""
    reasoning: str = ""


def parser_names(template: str, tools: str, reasoning: str) -> ParserNames:
    """As the options say; AUTO finds the formats that a chat template shows."""
    harmony = {HARMONY: (HARMONY_SIGNS,)}
    return ParserNames(
        _found(harmony | {name: one.signs for name, one in TOOLS.items()}, template) if tools == AUTO else tools,
        _found(harmony | {name: one.signs for name, one in REASONING.items()}, template)
        if reasoning == AUTO
        else reasoning,
    )


def _found(signs: dict[str, tuple[frozenset[str], ...]], template: str) -> str:
    return next((name for name, sets in signs.items() for texts in sets if all(text in template for text in texts)), "")


def literals(row: CallFormat) -> list[str]:
    """Every fixed text of a row."""
    slots = [slot for slot in row.item if isinstance(slot, ParametersField)]
    inner = [text for slot in slots for text in (slot.begin, slot.named, slot.close, slot.end)]
    return [*row.begin, *(text for text in row.item if isinstance(text, str)), row.between or "", row.end, *inner]
