"""LLM: a model in this Python program, without a server. The engine is a process of its own, as under `kvasir serve`.

The blocking form of AsyncLLM, whose event loop runs in a thread. Every mistake of a caller raises
PromptError, ValueError or EngineError with one line.
"""

import asyncio
import atexit
import queue
import random
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from kvasir_api.option_parser import describe
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime.client.engine_process import ENGINE_COMMAND
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.parsing.parts import Content, Reasoning
from kvasir_runtime.offline import vllm_options
from kvasir_runtime.offline.async_llm import AsyncLLM, EngineError
from kvasir_runtime.offline.outputs import EmbeddingOutput, Output
from kvasir_runtime.offline.progress import ProgressBars
from kvasir_runtime.offline.sampling_params import BeamSearchParams, SamplingParams
from kvasir_runtime.wire import EngineFacts

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]
_T = TypeVar("_T")

Params = SamplingParams | Sequence[SamplingParams] | None
UNBOUNDED = {"max_waiting_seconds": 0, "max_waiting_tokens": 0}
"""Unless given: a call has all its prompts answered, however long the last ones wait."""
OPTIONS = frozenset(
    {*RuntimeOptions.model_fields, "enable_eplb", "eplb_config", "device", "trace", "revision", "chat_template"}
)


class LLM:
    """A loaded model. Use it as a context manager, or call close(); the end of the program closes it as well.

    model: a directory with a Hugging Face checkpoint, a .gguf file, or a hub name. options: those of `kvasir serve`
    that concern the engine, by their Python names, for example max_model_len=4096 or memory_fraction=0.5, or by those
    that vLLM's class has for them. seed: from which prompts without a seed of their own draw, in their order. progress:
    show a bar while loading and generating; None shows one on a terminal. Raises ValueError for wrong options,
    EngineError when the model cannot be served.
    """

    def __init__(
        self,
        model: str,
        *,
        progress: bool | None = None,
        seed: int | None = None,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        **options: Any,
    ) -> None:
        settings = _settings(model, options)
        self._seeds = None if seed is None else random.Random(seed)
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
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        add_special_tokens: bool = True,
    ) -> list[Output]:
        """Continue one prompt or many, each a text or token ids; one Output per prompt, in their order.

        sampling_params: of all prompts, or one for each. use_tqdm: False shows no bar. All prompts are checked before
        the first is computed. Raises PromptError, EngineError.
        """
        body = {"add_special_tokens": add_special_tokens}
        bodies = [{**body, "prompt": prompt} for prompt in _prompts(prompts)]
        return self._answers(bodies, sampling_params, chat=False, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **template: Any,
    ) -> list[Output]:
        """Answer one conversation or many: messages as OpenAI's API takes them, {"role": ..., "content": ...}.

        template: variables of the model's chat template, such as enable_thinking=False, like chat_template_kwargs.
        """
        body: dict[str, Any] = {"chat_template_kwargs": {**(chat_template_kwargs or {}), **template}}
        body |= {"tools": list(tools)} if tools else {}
        if not add_generation_prompt or continue_final_message:
            body |= {"add_generation_prompt": False, "continue_final_message": continue_final_message}
        bodies = [{**body, "messages": one} for one in _conversations(messages)]
        return self._answers(bodies, sampling_params, chat=True, use_tqdm=use_tqdm)

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

    @property
    def has_chat_template(self) -> bool:
        """Whether chat() works."""
        return self._llm.has_chat_template

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

    def _answers(self, bodies: list[dict[str, Any]], params: Params, *, chat: bool, use_tqdm: bool) -> list[Output]:
        requests = self._requests(bodies, params, chat=chat)
        if not requests:
            return []
        with self._bars.generating(len(requests), wanted=use_tqdm) as on_output:
            outputs = self._run(self._llm.answers(requests, on_output, num_at_once=2 * self.facts.max_sequences))
        texts = (self._llm.prompt_text(body, request) for body, request in zip(bodies, requests, strict=True))
        return [replace(output, prompt=text) for output, text in zip(outputs, texts, strict=True)]

    def _requests(self, bodies: list[dict[str, Any]], params: Params, *, chat: bool) -> list[GenerationRequest]:
        if self._closed:
            raise EngineError("this LLM is closed")
        each = [params or SamplingParams()] * len(bodies) if not isinstance(params, Sequence) else params
        if len(each) != len(bodies):
            raise ValueError(f"{len(each)} sampling_params for {len(bodies)} prompts; give one, or one for each")
        requests = []
        for number, (body, one) in enumerate(zip(bodies, each, strict=True)):
            drawn = {} if self._seeds is None else {"seed": self._seeds.getrandbits(62)}
            fields = one.fields(chat=chat)
            requests.append(self._llm.request({**drawn, **fields, **body}, chat=chat, number=number))
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
    given = vllm_options.translated(options, str(model))
    if "memory_fraction" in given:
        given["memory_percent"] = round(given.pop("memory_fraction") * 100)
    if unknown := sorted(set(given) - OPTIONS):
        known = ", ".join(sorted(OPTIONS - {"memory_percent"} | {"memory_fraction"}))
        raise ValueError(f"LLM has no option {', '.join(unknown)}; there are {known}")
    try:
        return ServeOptions(model=str(model), **{**UNBOUNDED, **given})
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
