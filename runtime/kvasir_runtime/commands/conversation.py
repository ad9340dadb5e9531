"""The state of one chat in a terminal, and what its lines mean. Pure: it neither prints nor asks a model.

Driven by chat.py: a line is either a message or a command that begins with a slash.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

HELP: Final = """\
/system TEXT   set the system message and begin anew; without TEXT remove it
/reset         forget what was said, keep the system message
/retry         ask for the last answer again
/help          this list
/exit          leave (also ctrl-D)
A line that ends with a backslash goes on in the next. ctrl-C stops an answer."""

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class LineAction:
    """What to do after a line: ask the model, say something, or leave."""

    action: Literal["ask", "say", "leave"]
    text: str = ""


@dataclass(slots=True)
class Conversation:
    """system: the system message, "" for none. messages: what was said, user and assistant in turn."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    _unfinished: list[str] = field(default_factory=list)

    @property
    def continues(self) -> bool:
        """Whether the last line asked for another."""
        return bool(self._unfinished)

    def hear(self, line: str) -> LineAction:
        """One line of the user's."""
        if line.endswith("\\"):
            self._unfinished.append(line[:-1])
            return LineAction("say")
        first = not self._unfinished
        text = "\n".join([*self._unfinished, line]).strip()
        self._unfinished.clear()
        if not text:
            return LineAction("say")
        if first and text.startswith("/"):
            return self._command(text)
        self.messages.append({"role": "user", "content": text})
        return LineAction("ask")

    def prompt(self) -> list[Message]:
        """What the model is sent."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def answered(self, text: str) -> None:
        """Keep an answer, also one that was stopped half-way; without a text the question is taken back."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        elif self.messages:
            self.messages.pop()

    def _command(self, text: str) -> LineAction:
        name, _, rest = text.partition(" ")
        match name:
            case "/exit" | "/quit" | "/bye":
                return LineAction("leave")
            case "/reset":
                self.messages.clear()
                return LineAction("say", "forgotten")
            case "/system":
                self.system = rest.strip()
                self.messages.clear()
                return LineAction("say", "system message set" if self.system else "no system message")
            case "/retry":
                if not any(message["role"] == "user" for message in self.messages):
                    return LineAction("say", "nothing was asked yet")
                if self.messages[-1]["role"] == "assistant":
                    self.messages.pop()
                return LineAction("ask")
            case "/help" | "/?":
                return LineAction("say", HELP)
        return LineAction("say", f"there is no {name[:40]}; /help lists what there is")
