"""From a request to its answer on the way: what the routes of every surface that generates have in common.

Refuses early and cheaply, prepares in a thread, then checks the queue again with the true number of sequences. The
surfaces say what a body means and how its answer is written; nothing here knows their documents.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.requests import Request

from kvasir_runtime.server.admission import queue_refusal
from kvasir_runtime.server.answers import OpenAi
from kvasir_runtime.server.bodyread import read_body
from kvasir_runtime.server.framing import Framing
from kvasir_runtime.server.handed import HandedAnswer
from kvasir_runtime.server.logprobs import Labels
from kvasir_runtime.server.pod import Opened, Pod
from kvasir_runtime.server.prepare import Job, Served
from kvasir_runtime.server.refusals import Refused
from kvasir_runtime.server.streams import Answering, StreamedAnswer, WholeAnswer

FramingOf = Callable[[Job, int, str, Labels], Framing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job and how its answer is written."""

    job: Job
    framing: FramingOf = OpenAi


async def answering(
    request: Request,
    pod: Pod,
    prepare: Callable[[bytes, Served], Prepared],
    *,
    on_end: Callable[[], None] = lambda: None,
) -> Answering:
    """The answer to a request, ready to be sent. prepare runs in a thread, on_end once at the end. Raises Refused."""
    arrived = pod.clock()
    opened = pod.open_or_refuse()
    check_queue(pod, opened, 1)
    raw = await read_body(request, pod.options.max_body_bytes)
    pod.enter()
    pod.num_preparing += 1
    try:
        loop = asyncio.get_running_loop()
        try:
            prepared = await loop.run_in_executor(pod.threads, prepare, raw, opened.served)
            prepared = replace(prepared, job=await opened.verdicts.checked(prepared.job))
        finally:
            pod.num_preparing -= 1
        pod.open_or_refuse()
        check_queue(pod, opened, len(prepared.job.requests))
    except BaseException:
        pod.leave()
        raise

    def ended() -> None:
        pod.leave()
        on_end()

    form = WholeAnswer if not prepared.job.stream else HandedAnswer if prepared.job.interrupts else StreamedAnswer
    return form(
        prepared.job,
        opened.client,
        opened.served.tokenizer,
        meter=pod.metrics,
        arrived=arrived,
        created=int(time.time()),
        fingerprint=opened.fingerprint,
        on_end=ended,
        framing=prepared.framing,
        running=pod.running,
        clock=pod.clock,
    )


def check_queue(pod: Pod, opened: Opened, num_new: int) -> None:
    """Requests in threads count too: a burst must not get past the bound while it is being tokenized."""
    refusal = queue_refusal(
        opened.client.state,
        inflight=opened.client.num_inflight + pod.num_preparing + num_new,
        max_sequences=opened.max_sequences,
        max_waiting=pod.options.max_waiting,
        jitter=random.random(),
    )
    if refusal is not None:
        raise Refused(refusal)
