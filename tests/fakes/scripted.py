"""A real server whose engine says what a test wrote, token by token: for surfaces, tools and reasoning."""

import base64
import json
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from fakes import checkpoints
from fakes.api_process import ApiProcess, api_process


@dataclass(frozen=True, slots=True)
class Scripted:
    """server: the process. log: what its engine heard, a JSON line each."""

    server: ApiProcess
    log: Path
    script: Path
    encoder: Tokenizer

    def says(self, text: str) -> int:
        """What the engine answers from now on, and then it stops; the number of tokens. "": the prompt, endlessly."""
        ids = self.encoder.encode(text).ids
        self.script.write_text(json.dumps(ids))
        return len(ids)

    def heard(self) -> dict[str, Any]:
        """The last request that the engine was sent."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        found: dict[str, Any] = [line["request"] for line in lines if line["type"] == "submit"][-1]
        return found

    def prompt(self) -> str:
        """The text of its prompt."""
        heard = self.heard()
        ids = array("I", base64.b64decode(heard.get("packed_prompt", "")))
        return self.encoder.decode(list(ids) or heard["prompt"], skip_special_tokens=False)


@contextmanager
def scripted(
    folder: Path,
    *args: str,
    faults: Mapping[str, Any] | None = None,
    chat_template: str = "",
    files: Mapping[str, str] | None = None,
    wait: str = "ready",
) -> Iterator[Scripted]:
    """Start one in an empty folder. chat_template, files: of the model. wait: as api_process()."""
    model = checkpoints.write(folder / "tiny")
    own = {"chat_template.jinja": chat_template} if chat_template else {}
    for name, text in {**own, **(files or {})}.items():
        (model / name).write_text(text)
    log, script = folder / "heard", folder / "says"
    script.write_text("[]")
    told = {"log": str(log), "says": str(script), **(faults or {})}
    with api_process(model, *args, faults=told, wait=wait) as server:
        yield Scripted(server, log, script, Tokenizer.from_file(str(model / "tokenizer.json")))


TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}"
    "</tool_call>{% endfor %}{% if m.tool_call_id %} for {{ m.tool_call_id }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined %}{{ 'think' if enable_thinking else 'quiet' }}{% endif %}{% endif %}"
)
"""Shows what a template is given; calls are in hermes' format, thoughts in qwen3's."""
