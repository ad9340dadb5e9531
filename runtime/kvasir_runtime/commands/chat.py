"""`kvasir chat`: a conversation in the terminal, with a model on this machine or behind a URL."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

import click

from kvasir_api import names
from kvasir_runtime.commands import engine_options
from kvasir_runtime.commands.conversation import Conversation
from kvasir_runtime.commands.openai_client import OpenAIClient, ServerError
from kvasir_runtime.frontend.parsing.parts import Content, Reasoning

Piece = Content | Reasoning
Stream = Callable[[list[dict[str, str]], dict[str, Any]], Iterator[Piece]]


class Screen:
    """Where the chat is shown. On a terminal with names, colours, thoughts and speed; else only the answers."""

    def __init__(self, source: TextIO, sink: TextIO) -> None:
        self.interactive = source.isatty() and sink.isatty()
        self._thinking = False
        self._source = source
        self._sink = sink

    def lines(self, conversation: Conversation) -> Iterator[str]:
        """The user's lines until the end of the input."""
        while True:
            try:
                if self.interactive:
                    yield input("... " if conversation.continues else click.style("you  ", fg="cyan", bold=True))
                elif line := self._source.readline():
                    yield line.rstrip("\n")
                else:
                    return
            except EOFError:
                self.note("")
                return
            except KeyboardInterrupt:
                self.note("\n/exit or ctrl-D leaves")

    def note(self, text: str) -> None:
        """Something of the program's, for a person only."""
        if self.interactive:
            click.secho(text, dim=True, file=self._sink)

    def begin(self) -> None:
        """An answer begins."""
        self._thinking = False
        if self.interactive:
            click.secho("bot  ", fg="green", bold=True, nl=False, file=self._sink)

    def think(self, piece: str) -> None:
        """A piece of what the model thinks before it answers, for a person only."""
        if self.interactive:
            click.secho(piece if self._thinking else piece.lstrip(), dim=True, nl=False, file=self._sink)
            self._sink.flush()
            self._thinking = True

    def write(self, piece: str) -> None:
        """A piece of it."""
        if self._thinking:
            self._sink.write("\n\n")
            self._thinking, piece = False, piece.lstrip()
        self._sink.write(piece)
        self._sink.flush()

    def fail(self, text: str) -> None:
        """What went wrong; on standard error without a terminal."""
        click.secho(f"{names.REFUSAL_PREFIX}{text}", fg="red", err=not self.interactive)


def converse(conversation: Conversation, stream: Stream, params: dict[str, Any], screen: Screen) -> bool:
    """Chat until the user exits. True when every answer came."""
    good = True
    for line in screen.lines(conversation):
        action = conversation.read(line)
        if action.kind == "exit":
            break
        if action.kind == "print":
            screen.note(action.text) if action.text else None
            continue
        try:
            answer(conversation, stream, params, screen)
        except ServerError as error:
            screen.fail(str(error))
            good = False
    return good


def answer(conversation: Conversation, stream: Stream, params: dict[str, Any], screen: Screen) -> None:
    """Stream one answer and keep it; ctrl-C ends it and keeps what came."""
    parts: list[str] = []
    count = 0
    started = first = time.monotonic()
    screen.begin()
    try:
        with closing(stream(conversation.prompt(), params)) as pieces:
            for piece in pieces:
                first = first if count else time.monotonic()
                count += 1
                if isinstance(piece, Reasoning):
                    screen.think(piece.text)
                    continue
                parts.append(piece.text)
                screen.write(piece.text)
    except KeyboardInterrupt:
        screen.note(" (stopped)")
    finally:
        conversation.answered("".join(parts))
        screen.write("\n")
    elapsed = time.monotonic() - first
    if count and not parts:
        screen.note("     the answer has only reasoning, so the question was removed; raise --max-tokens")
    if count > 1 and elapsed > 0:
        screen.note(f"     first piece after {first - started:.2f} s, then {(count - 1) / elapsed:.1f} a second")


@contextmanager
def closing(pieces: Iterator[Piece]) -> Iterator[Iterator[Piece]]:
    """Closes a stream that is left early, so that the model stops computing."""
    try:
        yield pieces
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()


@click.command(
    "chat", short_help="Chat in the terminal, with a local model or a server.", params=engine_options.options()
)
@click.argument("model", required=False)
@click.option("--url", help="Talk to this OpenAI-compatible server instead of loading a model.", metavar="URL")
@click.option("--model", "name", default="", help="With --url: the model's name there; default: the first it lists.")
@click.option("--api-key", default="", help="With --url: key to send; default: the variable OPENAI_API_KEY.")
@click.option("--system", default="", help="System message to begin with.", metavar="TEXT")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens of an answer, at most.  [default: what fits]")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 is greedy.  [default: 1]")
def chat(
    model: str | None,
    url: str | None,
    name: str,
    api_key: str,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
    **engine: Any,
) -> None:
    """Chat with MODEL (a directory, a .gguf file or a hub name), or with a server: --url URL.

    Lines that begin with a slash are commands; /help lists them. Without a terminal every line of standard input is a
    message, and only the answers are printed. What a model thinks before it answers is shown dimmed.

    \b
      kvasir chat ./model
      kvasir chat --url http://127.0.0.1:8000 --model my-model --system "Answer in one sentence."
      echo "What is a KV cache?" | kvasir chat --url http://127.0.0.1:8000
    """
    if (model is None) == (url is None):
        raise click.UsageError("give either MODEL or --url URL")
    params = {"max_tokens": max_tokens, "temperature": temperature}
    screen = Screen(sys.stdin, sys.stdout)
    if screen.interactive:
        _remember_lines()
    with ExitStack() as stack:
        stream, title = _local(model, engine, stack) if model else _remote(str(url), name, api_key)
        screen.note(f"{title}; /help lists the commands")
        given = {key: value for key, value in params.items() if value is not None}
        good = converse(Conversation(system=system), stream, given, screen)
    raise SystemExit(0 if good else 1)


def _local(model: str, engine: dict[str, Any], stack: ExitStack) -> tuple[Stream, str]:
    from kvasir_runtime import LLM, EngineError, PromptError, SamplingParams

    try:
        llm = stack.enter_context(LLM(model, **engine_options.taken(model, engine)))
    except (EngineError, ValueError) as error:
        raise click.ClickException(str(error)) from error

    def stream(messages: list[dict[str, str]], params: dict[str, Any]) -> Iterator[Piece]:
        try:
            yield from llm.stream_parts(messages, SamplingParams(**params))
        except (EngineError, PromptError) as error:
            raise ServerError(str(error)) from error

    return stream, f"{model} on {llm.facts.device}"


def _remote(url: str, name: str, api_key: str) -> tuple[Stream, str]:
    try:
        remote = OpenAIClient(url, name, api_key or os.environ.get("OPENAI_API_KEY", ""))
    except ServerError as error:
        raise click.ClickException(str(error)) from error
    return remote.stream, f"{remote.model} at {url}"


def _remember_lines() -> None:
    """Arrow keys edit and recall lines, where the library is there."""
    try:
        import readline  # noqa: F401 - importing it is what does it
    except ImportError:
        return
