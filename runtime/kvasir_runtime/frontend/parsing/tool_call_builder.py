"""Builds the parts of calls from what the machines read. Used by the fields of calls and the parsers.

A call is returned as soon as its name and the beginning of its arguments are known; then it cannot be taken back.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvasir_runtime.frontend.parsing import literals
from kvasir_runtime.frontend.parsing.char_machines import NoCall
from kvasir_runtime.frontend.parsing.parts import CallArguments, CallBegin, CallCut, CallEnd, Part

MAX_HELD: Final = 65_536
"""Characters of arguments that may come before the name they are for."""

Offered = Mapping[str, Mapping[str, Any]]
"""The JSON schema of the parameters of each function, by name."""


class ToolCallBuilder:
    """Calls in the order of their reading. num_done: complete ones. told: the current one was begun, not completed."""

    __slots__ = ("_call_id", "_held", "_name", "_new_id", "_num_told", "_said", "num_done", "offered", "parts", "told")

    def __init__(self, offered: Offered, new_id: Callable[[], str], num_told: int = 0) -> None:
        self.offered = offered
        self.parts: list[Part] = []
        self.told = False
        self.num_done = 0
        self._new_id = new_id
        self._num_told = num_told
        self._name = self._call_id = ""
        self._held = ""
        self._said = False

    @property
    def index(self) -> int:
        """Of the call that was returned last."""
        return self._num_told - 1

    @property
    def is_named(self) -> bool:
        """The function of the present call is known."""
        return bool(self._name)

    def types(self, parameter: str) -> set[str]:
        """The JSON types of a parameter of the named function."""
        schema = self.offered[self._name]
        properties = schema.get("properties")
        return literals.types(properties.get(parameter) if isinstance(properties, Mapping) else None, schema)

    def named(self, name: str, call_id: str = "") -> None:
        """call_id: the identifier that the model gave, "" for one of ours. Raises NoCall for a function not offered."""
        if name not in self.offered or self._name:
            raise NoCall
        self._name, self._call_id = name, call_id
        if self._held:
            held, self._held = self._held, ""
            self.put(held)

    def put(self, text: str) -> None:
        """A piece of the arguments. Raises NoCall when too much comes before the name."""
        self._said = True
        if not self._name:
            self._held += text
            if len(self._held) > MAX_HELD:
                raise NoCall
            return
        self._tell()
        self.parts.append(CallArguments(self.index, text))

    def done(self) -> None:
        """The call is complete; without arguments it has an empty object of them. Raises NoCall without a name."""
        if not self._name:
            raise NoCall
        if not self._said:
            self.put("{}")
        self.parts.append(CallEnd(self.index))
        self.forget()
        self.num_done += 1

    def cut(self) -> None:
        """The answer was cut within a call that had to be made. Without a name it is that of the only function, if any.

        After a complete call nothing is added before the name of the next is known.
        """
        if not self._name and not self.num_done and not self._num_told and len(self.offered) == 1:
            self._name = next(iter(self.offered))
        if self._name:
            self._tell()
            if self._held:
                self.parts.append(CallArguments(self.index, self._held))
            self.parts.append(CallCut(self.index))
            self.forget()

    def forget(self) -> None:
        """The present call is over, or was none."""
        self._name, self._call_id, self._held, self.told, self._said = "", "", "", False, False

    def _tell(self) -> None:
        if not self.told:
            self.told = True
            self._num_told += 1
            self.parts.append(CallBegin(self.index, self._call_id or self._new_id(), self._name))
