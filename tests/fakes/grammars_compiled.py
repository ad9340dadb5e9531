"""A compiler that takes as many questions as it is told, for the engine's loop."""

from dataclasses import dataclass, field

from kvasir_runtime.wire import Grammar


@dataclass(slots=True)
class FakeGrammars:
    """questions: how often ready() says not yet, by the text of the grammar; one that begins with "bad" fails then."""

    questions: dict[str, int] = field(default_factory=dict)
    held: dict[str, Grammar] = field(default_factory=dict)

    def compile(self, request_id: str, grammar: Grammar) -> None:
        """Begin."""
        assert request_id not in self.held
        self.held[request_id] = grammar

    def ready(self, request_id: str) -> str | None:
        """Not before it was asked often enough."""
        text = self.held[request_id].text
        left = self.questions.get(text, 0)
        self.questions[text] = left - 1
        if left > 0:
            return None
        return f"{text} is bad" if text.startswith("bad") else ""

    def drop(self, request_id: str) -> None:
        """Forget."""
        self.held.pop(request_id, None)
