"""What others reach on this card in the same run: a compiled loop for one sequence, transformers' continuous batching.

Both get random weights of the same shape. Ours beside them is the cell of the same load, measured in this run.
"""

import random
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch

from bench.gpu import floors
from bench.gpu.book import Cell, failed, measured, skipped
from bench.gpu.compiled import loop, stepper
from bench.gpu.inprocess import Served, prompt, request
from bench.gpu.section import NO_TIME, Context
from kvasir_runtime.wire import StepOutputs, Submit, ToEngine

COMPILE_S = 60.0
CROWD_S = 40.0


def cells(context: Context) -> Iterator[Cell]:
    """One sequence, then a crowd by them and by us."""
    yield _guarded(context, f"compiled loop, 1 x {context.sizes.peer_context}", COMPILE_S, _compiled)
    name = f"{context.sizes.peer_requests[0]} requests of mixed lengths"
    ours = _guarded(context, f"{name}, ours", CROWD_S, _ours)
    yield ours
    if find_spec("transformers") is None:
        yield skipped("peers", f"{name}, transformers", "transformers is not installed")
        return
    theirs = _guarded(context, f"{name}, transformers", CROWD_S, _transformers)
    yield theirs
    if ours.status == theirs.status == "measured":
        yield measured("peers", f"{name}, ours over transformers", [ours.median / theirs.median], unit="x", more=True)


def _guarded(context: Context, name: str, needed_s: float, run: Callable[[Context, str], Cell]) -> Cell:
    if context.left_s < (needed_s if context.sizes.name == "full" else 1.0):
        return skipped("peers", name, NO_TIME)
    try:
        return run(context, name)
    except Exception as error:  # noqa: BLE001 -- a peer that fails must not take the run with it
        return failed("peers", name, f"{type(error).__name__}: {error}")
    finally:
        torch.compiler.reset()
        if context.device != "cpu":
            torch.cuda.empty_cache()


def _dtype(context: Context) -> torch.dtype:
    return torch.float32 if context.device == "cpu" else torch.bfloat16


@torch.inference_mode()
def _compiled(context: Context, name: str) -> Cell:
    sizes, device = context.sizes, context.torch_device
    steps = sizes.warm_steps + sizes.steps
    length = -(-(sizes.peer_context + steps) // 128) * 128
    step = stepper(loop(sizes.shape, length, device, _dtype(context)), on_card=context.device != "cpu")
    token = torch.ones(1, dtype=torch.int64, device=device)
    position = torch.tensor([sizes.peer_context], device=device)
    times = []
    for number in range(steps):
        started = time.perf_counter()
        token = step(token, position).clone()
        position = position + 1
        token.tolist()  # a server would have to know it too
        if number >= sizes.warm_steps:
            times.append(time.perf_counter() - started)
    wide = float(sizes.shape.dtype.itemsize)
    mean = sizes.peer_context + sizes.warm_steps + sizes.steps / 2
    floor = floors.step(1, mean, context.work, context.weight_bytes, wide, context.ceilings())
    return measured("peers", name, times, floor=floor)


def _requests(context: Context) -> list[tuple[tuple[int, ...], int]]:
    """Prompt and length of the answer, the same for both."""
    count, least, most = context.sizes.peer_requests
    lengths = random.Random("peers")
    vocab = context.sizes.shape.vocab_size
    return [
        (prompt(lengths.randint(least, most), vocab, ("peer", n)), lengths.randint(least, most)) for n in range(count)
    ]


class _All:
    """Everything at once, until the last is answered."""

    def __init__(self, requests: list[tuple[tuple[int, ...], int]]) -> None:
        self._requests = [request(ids, answer) for ids, answer in requests]
        self._left = len(requests)
        self.wrong = ""
        self.tokens = 0
        self.began = self.ended = 0.0

    def begin(self) -> list[ToEngine]:
        self.began = time.perf_counter()
        return [Submit(made) for made in self._requests]

    def heard(self, step: StepOutputs, now: float) -> list[ToEngine] | None:
        for event in step.outputs:
            self.tokens += len(event.token_ids)
            self._left -= event.finish_reason is not None
            if event.finish_reason == "error":
                self.wrong = event.message
        self.ended = now
        return None if self.wrong or not self._left else []


def _ours(context: Context, name: str) -> Cell:
    served = Served(context.model, context.sizes, context.device)
    try:
        script = _All(_requests(context))
        served.run(script, context.left_s)
    finally:
        served.close()
    return measured("peers", name, [script.tokens / (script.ended - script.began)], unit="tokens/s", more=True)


def _transformers(context: Context, name: str) -> Cell:
    """Its engine takes one length of answer for all, so each request gets the mean of ours."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    requests = _requests(context)
    mean = sum(answer for _, answer in requests) // len(requests)
    model = AutoModelForCausalLM.from_pretrained(context.model, dtype=_dtype(context), attn_implementation="sdpa")
    model = model.to(context.torch_device).eval()
    how: dict[str, Any] = {
        "generation_config": GenerationConfig(max_new_tokens=mean, do_sample=False, eos_token_id=-1, pad_token_id=0)
    }
    if context.sizes.name == "dry":  # by default it takes nine tenths of the memory
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        how["continuous_batching_config"] = ContinuousBatchingConfig(page_size=16, num_blocks=32, max_batch_tokens=64)
    started = time.perf_counter()
    outputs = model.generate_batch(inputs=[list(ids) for ids, _ in requests], **how)
    taken = time.perf_counter() - started
    tokens = sum(len(output.generated_tokens) for output in outputs.values())
    note = f"answers of {mean} tokens each, its warm-up included"
    return measured("peers", name, [tokens / taken], unit="tokens/s", more=True, note=note)
