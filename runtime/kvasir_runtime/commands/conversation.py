"""The state of one chat in a terminal, and what its lines mean. Pure: it neither prints nor calls a model.

Driven by chat.py: a line is either a message or a command that begins with a slash.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

HELP: Final = """\
/system TEXT   set the system message and start again; without TEXT remove it
/reset         remove all messages but the system message
/retry         generate the last answer again
/help          this list
/exit          leave (also ctrl-D)
A line that ends with a backslash goes on in the next. ctrl-C stops an answer."""

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class LineAction:
    """What to do after a line: generate an answer, print a text, or exit."""

    kind: Literal["answer", "print", "exit"]
    text: str = ""


@dataclass(slots=True)
class Conversation:
    """system: the system message, "" for none. messages: user and assistant in turn."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    _unfinished: list[str] = field(default_factory=list)

    @property
    def continues(self) -> bool:
        """Whether the message continues in the next line."""
        return bool(self._unfinished)

    def read(self, line: str) -> LineAction:
        """Take one line of the user."""
        if line.endswith("\\"):
            self._unfinished.append(line[:-1])
            return LineAction("print")
        first = not self._unfinished
        text = "\n".join([*self._unfinished, line]).strip()
        self._unfinished.clear()
        if not text:
            return LineAction("print")
        if first and text.startswith("/"):
            return self._command(text)
        self.messages.append({"role": "user", "content": text})
        return LineAction("answer")

    def prompt(self) -> list[Message]:
        """The messages for the model."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def answered(self, text: str) -> None:
        """Keep an answer, also one that was stopped half-way; without a text the question is removed."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        elif self.messages:
            self.messages.pop()

    def _command(self, text: str) -> LineAction:
        name, _, rest = text.partition(" ")
        match name:
            case "/exit" | "/quit" | "/bye":
                return LineAction("exit")
            case "/reset":
                self.messages.clear()
                return LineAction("print", "messages removed")
            case "/system":
                self.system = rest.strip()
                self.messages.clear()
                return LineAction("print", "system message set" if self.system else "no system message")
            case "/retry":
                if not any(message["role"] == "user" for message in self.messages):
                    return LineAction("print", "no message yet")
                if self.messages[-1]["role"] == "assistant":
                    self.messages.pop()
                return LineAction("answer")
            case "/help" | "/?":
                return LineAction("print", HELP)
        return LineAction("print", f"there is no {name[:40]}; /help lists what there is")
