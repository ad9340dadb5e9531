"""LLM: a model in this Python program, without a server. The engine is a process of its own, as under `kvasir serve`.

The blocking form of AsyncLLM, whose event loop runs in a thread. Every mistake of a caller raises
PromptError, ValueError or EngineError with one line.
"""

import asyncio
import atexit
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from kvasir_api.command import describe
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime.client.engine_process import ENGINE_COMMAND
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.parsing.parts import Content, Reasoning
from kvasir_runtime.offline.async_llm import AsyncLLM, EngineError
from kvasir_runtime.offline.outputs import EmbeddingOutput, Output
from kvasir_runtime.offline.progress import ProgressBars
from kvasir_runtime.offline.sampling_params import BeamSearchParams, SamplingParams
from kvasir_runtime.wire import EngineFacts

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]
_T = TypeVar("_T")

OPTIONS = frozenset({*RuntimeOptions.model_fields, "device", "trace"})


class LLM:
    """A loaded model. Use it as a context manager, or call close(); the end of the program closes it as well.

    model: a directory with a Hugging Face checkpoint, a .gguf file, or a hub name. options: those of `kvasir serve`
    that concern the engine, by their Python names, for example max_model_len=4096 or memory_fraction=0.5. progress:
    show a bar while loading and generating; None shows one on a terminal. Raises ValueError for wrong options,
    EngineError when the model cannot be served.
    """

    def __init__(
        self,
        model: str,
        *,
        progress: bool | None = None,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        **options: Any,
    ) -> None:
        settings = _settings(model, options)
        self._bars = ProgressBars(progress)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvasir-offline", daemon=True)
        self._thread.start()
        self._closed = False
        atexit.register(self.close)
        try:
            with self._bars.loading() as on_progress:
                self._llm = AsyncLLM(settings, engine_command=engine_command, on_progress=on_progress)
                self.facts: EngineFacts = self._run(self._llm.open())
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        add_special_tokens: bool = True,
    ) -> list[Output]:
        """Continue one prompt or many, each a text or token ids; one Output per prompt, in their order.

        All prompts are checked before the first is computed. Raises PromptError, EngineError.
        """
        body = {"add_special_tokens": add_special_tokens}
        bodies = [{**body, "prompt": prompt} for prompt in _prompts(prompts)]
        return self._answers(bodies, params, chat=False)

    def chat(
        self, messages: Messages | Sequence[Messages], params: SamplingParams | None = None, **template: Any
    ) -> list[Output]:
        """Answer one conversation or many: messages as OpenAI's API takes them, {"role": ..., "content": ...}.

        template: variables of the model's chat template, such as enable_thinking=False.
        """
        bodies = [{"messages": one, "chat_template_kwargs": template} for one in _conversations(messages)]
        return self._answers(bodies, params, chat=True)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, add_special_tokens: bool = True
    ) -> list[Output]:
        """The most likely answers to each prompt, best first; docs/api.md has the rules of the search."""
        return self.generate(prompts, params.sampling(), add_special_tokens=add_special_tokens)

    def stream(
        self, prompt: Prompt | Messages, params: SamplingParams | None = None, *, chat: bool = False, **template: Any
    ) -> Iterator[str]:
        """Pieces of one answer as they come; with chat the prompt is a list of messages. Leaving early aborts it.

        Raises PromptError at once, EngineError from the iterator.
        """
        body = {"messages": prompt, "chat_template_kwargs": template} if chat else {"prompt": prompt}
        request = self._single(body, params, chat=chat)
        return self._pieces(lambda put: self._llm.answer(request, lambda _, text: put(text)))

    def stream_parts(
        self, messages: Messages, params: SamplingParams | None = None, **template: Any
    ) -> Iterator[Content | Reasoning]:
        """As stream(chat=True), with the reasoning before the answer apart, where its format is known."""
        request = self._single({"messages": messages, "chat_template_kwargs": template}, params, chat=True)
        return self._pieces(lambda put: self._llm.answer(self._llm.thinking(request), on_part=put))

    def embed(self, prompts: Prompt | Sequence[Prompt]) -> list[EmbeddingOutput]:
        """One vector per prompt, in their order, pooled and scaled as /v1/embeddings does it (docs/embeddings.md).

        Raises PromptError, also for models without embeddings; EngineError.
        """
        if self._closed:
            raise EngineError("this LLM is closed")
        return self._run(self._llm.embeddings(_prompts(prompts), num_at_once=2 * self.facts.max_sequences))

    def get_default_sampling_params(self) -> SamplingParams:
        """The defaults of the checkpoint's generation_config.json, for fields that a call's params do not set."""
        return SamplingParams(**self._llm.defaults)

    def close(self) -> None:
        """End the engine and free its memory. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        llm = getattr(self, "_llm", None)
        try:
            if llm is not None:
                asyncio.run_coroutine_threadsafe(llm.close(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self, bodies: list[dict[str, Any]], params: SamplingParams | None, *, chat: bool) -> list[Output]:
        requests = self._requests(bodies, params, chat=chat)
        if not requests:
            return []
        with self._bars.generating(len(requests)) as on_output:
            return self._run(self._llm.answers(requests, on_output, num_at_once=2 * self.facts.max_sequences))

    def _requests(
        self, bodies: list[dict[str, Any]], params: SamplingParams | None, *, chat: bool
    ) -> list[GenerationRequest]:
        if self._closed:
            raise EngineError("this LLM is closed")
        given = (params or SamplingParams()).fields(chat=chat)
        requests = [
            self._llm.request({**given, **body}, chat=chat, number=number) for number, body in enumerate(bodies)
        ]
        return self._run(self._llm.checked(requests))

    def _single(self, body: dict[str, Any], params: SamplingParams | None, *, chat: bool) -> GenerationRequest:
        (request,) = self._requests([body], params, chat=chat)
        if len(request.requests) > 1:
            raise ValueError("stream() gives one answer; n must be 1")
        return request

    def _pieces(self, answered: Callable[[Callable[[_T], None]], Coroutine[Any, Any, object]]) -> Iterator[_T]:
        """answered: computes an answer and passes each piece of it to its argument."""
        pieces: queue.SimpleQueue[_T | None] = queue.SimpleQueue()

        async def answer() -> None:
            try:
                await answered(pieces.put)
            finally:
                pieces.put(None)

        future = asyncio.run_coroutine_threadsafe(answer(), self._loop)
        try:
            while (piece := pieces.get()) is not None:
                yield piece
            future.result()
        finally:
            _cancel(future)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for work on the session's loop; ctrl-C cancels it there first."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            _cancel(future)


def _cancel(future: "Future[Any]") -> None:
    if not future.done():
        future.cancel()


def _settings(model: str, options: Mapping[str, Any]) -> ServeOptions:
    """Raises ValueError that names what is wrong."""
    given = dict(options)
    if "memory_fraction" in given:
        given["memory_percent"] = round(given.pop("memory_fraction") * 100)
    if unknown := sorted(set(given) - OPTIONS):
        known = ", ".join(sorted(OPTIONS - {"memory_percent"} | {"memory_fraction"}))
        raise ValueError(f"LLM has no option {', '.join(unknown)}; there are {known}")
    try:
        return ServeOptions(model=str(model), **given)
    except ValidationError as error:
        raise ValueError(describe(error)) from error


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [_prompt(prompts)]
    return [_prompt(prompt) for prompt in prompts]


def _prompt(prompt: Any) -> Any:
    """A text or ids, also as vLLM's dictionaries hold them."""
    if isinstance(prompt, Mapping):
        wanted = [name for name in ("prompt", "prompt_token_ids") if name in prompt]
        if len(wanted) != 1 or len(prompt) != 1:
            raise ValueError(f"a prompt is a text, token ids, or a dictionary with one of them; not {sorted(prompt)}")
        prompt = prompt[wanted[0]]
    return prompt if isinstance(prompt, str) else list(prompt)


def _conversations(messages: Messages | Sequence[Messages]) -> list[Any]:
    if messages and isinstance(messages[0], Mapping):
        return [messages]
    return list(messages)
