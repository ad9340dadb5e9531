"""One engine process used from Python: starts it, turns prompts into requests and their answers into outputs.

Owned by LLM, which calls it on the event loop of its thread. Prompts pass the same checks as bodies of the HTTP API, so
a parameter means the same in both; no port is opened.
"""

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from kvasir_api.options import ServeOptions
from kvasir_runtime import source
from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.engine_process import ENGINE_COMMAND, EngineProcess
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import StartError
from kvasir_runtime.frontend import prepare, tokenizer
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_config import generation_defaults
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.output_format import TAIL
from kvasir_runtime.frontend.output_processor import output_processors
from kvasir_runtime.frontend.parsing.answer_parser import ParserConfig
from kvasir_runtime.frontend.parsing.formats import NONE, parser_names
from kvasir_runtime.frontend.parsing.parts import Content, Part, Reasoning
from kvasir_runtime.frontend.pooling import prepare as pooling
from kvasir_runtime.frontend.pooling.capabilities import capabilities
from kvasir_runtime.frontend.pooling.protocol import EmbeddingBody
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.frontend.structured_outputs.grammar_validator import GrammarValidator
from kvasir_runtime.offline.completion_builder import CompletionBuilder, output
from kvasir_runtime.offline.outputs import Embedding, EmbeddingOutput, Output
from kvasir_runtime.wire import EngineFacts, EngineOutput, EngineRequest

NAME: Final = "offline"
LAST_WORDS_S: Final = 0.2
WAKE_S: Final = 60.0

Body = dict[str, Any]
OnText = Callable[[int, str], None]
OnPart = Callable[[Content | Reasoning], None]


class EngineError(RuntimeError):
    """The model cannot be loaded, or the engine failed; one line with the reason."""


class PromptError(ValueError):
    """A prompt cannot be served: which, and what is wrong with it. param names the parameter at fault, if one is."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.param = param


class AsyncLLM:
    """open() first, close() at the end in any case. on_progress is called while the model loads.

    defaults: of the checkpoint, for what a prompt's params do not set, by the names of SamplingParams.
    """

    def __init__(
        self,
        options: ServeOptions,
        *,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._engine = EngineProcess(engine_command)
        self._on_progress = on_progress
        self.defaults: dict[str, Any] = {}
        self._client: EngineClient | None = None
        self._profile: ModelProfile | None = None
        self._grammar_validator: GrammarValidator | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> EngineFacts:
        """Find the model and start the engine; its facts. Raises EngineError."""
        try:
            self._engine.begin()
            folder = await asyncio.to_thread(source.resolve, self._options.model, self._options.revision)
            loaded = await asyncio.to_thread(tokenizer.load, folder, self._options.chat_template)
            self.defaults = await asyncio.to_thread(generation_defaults, folder, self._options)
            client = EngineClient(self._engine.address, on_progress=self._on_progress)
            self._client = client
            self._tasks.append(asyncio.create_task(client.run()))
            await self._engine.start(str(folder), self._options.model_dump(mode="json", exclude={"api_key", "model"}))
            self._tasks.append(asyncio.create_task(self._watch(client)))
            ready = await client.wait_ready()
            able = capabilities(folder, self._options, ready, loaded)
        except (StartError, EngineDeadError) as error:
            raise EngineError(str(error)) from error
        self._profile = ModelProfile(
            names=(NAME,),
            tokenizer=loaded,
            max_context=ready.max_cached_tokens,
            capabilities=able,
            defaults=self.defaults,
            ready=ready,
        )
        self._grammar_validator = GrammarValidator(folder, loaded.vocab_size)
        return ready

    async def close(self) -> None:
        """End the engine process and all tasks that wait for it."""
        if self._grammar_validator is not None:
            await self._grammar_validator.close()
        if self._client is not None:
            self._client.shutdown()
        await self._engine.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def request(self, body: Body, *, chat: bool, number: int = 0) -> GenerationRequest:
        """A checked and tokenized prompt; may be called on any thread. Raises PromptError, naming prompt number."""
        assert self._profile is not None, "the session is not open"
        raw = json.dumps({**body, "model": NAME}).encode()
        try:
            return prepare.from_bytes(raw, self._profile, chat=chat)
        except Refused as refused:
            raise PromptError(f"prompt {number}: {refused.error.message}", refused.error.param) from refused

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._profile is not None and self._profile.tokenizer.template is not None

    def prompt_text(self, body: Body, request: GenerationRequest) -> str | None:
        """The text of a body's prompt; of a chat what the template made of it, None where the prompt is ids."""
        assert self._profile is not None, "the session is not open"
        if not request.chat:
            return body["prompt"] if isinstance(body["prompt"], str) else None
        return self._profile.tokenizer.decode(request.requests[0].prompt, special=True)

    async def checked(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """The requests after their grammars were compiled once. Raises PromptError."""
        assert self._grammar_validator is not None, "the session is not open"
        made = []
        for number, request in enumerate(requests):
            try:
                made.append(await self._grammar_validator.checked(request))
            except Refused as refused:
                raise PromptError(f"prompt {number}: {refused.error.message}", refused.error.param) from refused
        return made

    async def answers(
        self, requests: Sequence[GenerationRequest], on_output: Callable[[Output], None], num_at_once: int
    ) -> list[Output]:
        """Outputs in the order of requests, at most num_at_once of them in the engine at a time. Raises EngineError."""
        gate = asyncio.Semaphore(num_at_once)

        async def one(request: GenerationRequest) -> Output:
            async with gate:
                output = await self.answer(request)
            on_output(output)
            return output

        tasks = [asyncio.create_task(one(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # open requests are aborted when this returns

    def thinking(self, request: GenerationRequest) -> GenerationRequest:
        """The same request of a chat, with reasoning apart from content if the model's format of it is known."""
        assert self._profile is not None, "the session is not open"
        loaded = self._profile.tokenizer
        reasoning = parser_names(loaded.template_text, NONE, self._options.reasoning_parser).reasoning
        prompt = loaded.decode(request.requests[0].prompt[-TAIL:], special=True)
        parser = ParserConfig(reasoning=reasoning.removeprefix(NONE), offered={}, prompt=prompt)
        return request if parser.idle else replace(request, parser=parser)

    async def embeddings(self, prompts: Sequence[Any], num_at_once: int) -> list[EmbeddingOutput]:
        """The vectors of texts and ids. Raises PromptError, EngineError."""
        assert self._client is not None, "the session is not open"
        assert self._profile is not None, "the session is not open"
        if not prompts:
            return []
        try:
            body = validation.validated({"model": NAME, "input": list(prompts)}, EmbeddingBody, {})
            asked = await asyncio.to_thread(pooling.embed, body, self._profile)
        except Refused as refused:
            raise PromptError(refused.error.message, refused.error.param) from refused
        requests = pooling.engine_requests(f"embd-{secrets.token_hex(12)}", asked)
        events = await self._last_events(requests, num_at_once)
        return [
            EmbeddingOutput(
                prompt_token_ids=tuple(request.prompt),
                outputs=Embedding(embedding=tuple(asked.vector(event).tolist())),
            )
            for request, event in zip(requests, events, strict=True)
        ]

    async def _last_events(self, requests: Sequence[EngineRequest], num_at_once: int) -> list[EngineOutput]:
        """The last output of each, in their order."""
        assert self._client is not None, "the session is not open"
        waiting, queue = deque(requests), EventQueue()
        running: set[str] = set()
        found: dict[str, EngineOutput] = {}
        try:
            while waiting or running:
                batch = [waiting.popleft() for _ in range(min(len(waiting), num_at_once - len(running)))]
                if batch:
                    running |= {request.request_id for request in batch}
                    self._client.submit(batch, queue)
                for _, event in await queue.take(WAKE_S) or ():
                    if event.finish_reason in {"error", "abort"}:
                        raise EngineError(event.message or "the engine could not serve the prompt")
                    if event.finish_reason is not None:
                        running.discard(event.request_id)
                        found[event.request_id] = event
        except EngineDeadError as gone:
            raise EngineError(str(gone)) from gone
        finally:
            for request_id in running:
                self._client.abort(request_id)
        return [found[request.request_id] for request in requests]

    async def answer(
        self, request: GenerationRequest, on_text: OnText = lambda _index, _text: None, on_part: OnPart | None = None
    ) -> Output:
        """One output; on_text gets each piece of text at once, with the index of its choice. Raises EngineError.

        on_part: of a request with one choice; it gets the same as parts.
        """
        assert self._client is not None, "the session is not open"
        assert self._profile is not None, "the session is not open"
        queue = EventQueue()
        choices = output_processors(request, self._profile.tokenizer)
        growing = [CompletionBuilder() for _ in choices]
        try:
            self._client.submit(request.requests, queue)
            while any(choice.open for choice in choices):
                for index, event in await queue.take(WAKE_S) or ():
                    if event.finish_reason in {"error", "abort"}:
                        raise EngineError(event.message or "the engine could not serve the prompt")
                    delta = choices[index].accept(event)
                    growing[index].add(event, delta)
                    if delta.text:
                        on_text(index, delta.text)
                    if on_part is not None:
                        _pass_on(delta.parts, on_part)
        except EngineDeadError as gone:
            raise EngineError(str(gone)) from gone
        finally:
            for choice in choices:
                if choice.open or choice.stopped:
                    self._client.abort(choice.request_id, stopped=choice.stopped)
        return output(request, choices, growing, TokenLabels(self._profile.tokenizer))

    async def _watch(self, client: EngineClient) -> None:
        how = await self._engine.wait()
        await asyncio.sleep(LAST_WORDS_S)  # the engine's own message, if it sends one, is better than the exit code
        client.fail(how)


def _pass_on(parts: Iterable[Part], on_part: OnPart) -> None:
    for part in parts:
        if isinstance(part, Content | Reasoning):
            on_part(part)
