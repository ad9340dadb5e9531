"""A real server whose engine says what a test wrote, token by token: for surfaces, tools and reasoning."""

import json
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
        return [line["request"] for line in lines if line["type"] == "submit"][-1]

    def prompt(self) -> str:
        """The text of its prompt."""
        return self.encoder.decode(self.heard()["prompt"], skip_special_tokens=False)


@contextmanager
def scripted(
    folder: Path,
    *args: str,
    faults: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    wait: str = "ready",
) -> Iterator[Scripted]:
    """Start one in an empty folder. chat_template: of the model, in place of the usual one. wait: as api_process()."""
    model = checkpoints.write(folder / "tiny")
    if chat_template is not None:
        (model / "chat_template.jinja").write_text(chat_template)
    log, script = folder / "heard", folder / "says"
    script.write_text("[]")
    told = {"log": str(log), "says": str(script), **(faults or {})}
    with api_process(model, *args, faults=told, wait=wait) as server:
        yield Scripted(server, log, script, Tokenizer.from_file(str(model / "tokenizer.json")))
