"""What parts of the gateway cost by themselves: hashing a long prompt, and the relay for streams that may be resumed.

Called by `bench.gateway` at full length and by a test for a moment.
"""

import asyncio
import json
import random
import string
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

from bench.gateway_rig import MODEL, GatewayProcesses, Replica
from bench.neighbour_scenarios import Figure
from fakes import sse_stream
from kvasir_api import http_apis, names
from kvasir_api.state import RuntimeState
from kvasir_gateway.block_peers import BYTES_PER_TOKEN
from kvasir_gateway.picker import request_parser
from kvasir_gateway.picker.request_prefix import RequestPrefix

HASHING_GOAL_MS: Final = 10.0
WORD_LETTERS: Final = (2, 9)
EVENTS: Final = 50
PAUSE_S: Final = 0.05
RESUMES: Final = {names.HEADER_RESUME: "1"}


async def hashing(*, tokens: int, count: int) -> list[Figure]:
    """Processor time of this thread for all that the picker does with the text of a chat, from the bytes of the body to
    the hashes that a replica has."""
    found, state = [], RuntimeState(model=MODEL)
    for number in range(count):
        body = _chat(number, tokens * BYTES_PER_TOKEN)
        began = time.thread_time()
        parsed = request_parser.parse_body(body, http_apis.CHATS)
        assert isinstance(parsed, request_parser.ParsedBody)
        prefix = RequestPrefix(parsed, http_apis.CHATS, {}, body_bytes=len(body))
        assert prefix.route_hashes(state)
        found.append(1000 * (time.thread_time() - began))
    of, goal = f"a prompt of {tokens:,} tokens, {count} times", f"<= {HASHING_GOAL_MS:g} ms"
    middle = median(found)
    return [
        Figure(scenario=of, name="processor time, least", value=min(found), unit="ms"),
        Figure(
            scenario=of,
            name="processor time, median",
            value=middle,
            unit="ms",
            goal=goal,
            is_met=middle <= HASHING_GOAL_MS,
        ),
        Figure(scenario=of, name="processor time, most", value=max(found), unit="ms"),
    ]


async def relayed(
    front: GatewayProcesses, _pods: Sequence[Replica], *, rounds: int, at_once: int, pairs: int
) -> list[Figure]:
    """The same streams in turns as they are and such that may be resumed: what each of the processes takes for one of
    many at once, and when the first event of a single one comes, in pairs."""
    took: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(2 * (1 + rounds)):
        resumes, before = bool(number % 2), front.cpu_s()
        await asyncio.gather(*(_first_ms(front, resumes, EVENTS) for _ in range(at_once)))
        if number >= 2:  # the first of each kind makes connections
            took[resumes].append(
                {name: 1000 * (after - before[name]) / at_once for name, after in front.cpu_s().items()}
            )
    of = f"{rounds} times {at_once} streams of {EVENTS} events"
    figures = [figure for name in took[True][0] for figure in _processor_time(of, name, took)]
    added_ms = []
    for number in range(pairs):
        first_ms = {resumes: await _first_ms(front, resumes, 1) for resumes in (bool(number % 2), not number % 2)}
        added_ms.append(first_ms[True] - first_ms[False])
    of = f"{pairs} pairs of single streams"
    for name, value in (("least", min(added_ms)), ("median", median(added_ms)), ("most", max(added_ms))):
        figures.append(Figure(scenario=of, name=f"added to the first event, {name}", value=value, unit="ms"))
    return figures


def _processor_time(of: str, name: str, took: dict[bool, list[dict[str, float]]]) -> Iterator[Figure]:
    for resumes, rows in took.items():
        if name == "relay" and not resumes:
            continue
        values = [row[name] for row in rows]
        kind = "that may be resumed" if resumes else "as it is"
        for which, value in (("least", min(values)), ("median", median(values)), ("most", max(values))):
            yield Figure(
                scenario=of, name=f"{name}, processor time of a stream {kind}, {which}", value=value, unit="ms"
            )


async def _first_ms(front: GatewayProcesses, resumes: bool, events: int) -> float:
    """Until the first event of a stream, which is read to its end."""
    body: dict[str, Any] = {"model": MODEL, "prompt": "a question", "max_tokens": events, "pause_s": PAUSE_S}
    seen = await sse_stream.read(front.address, body, **(RESUMES if resumes else {}))
    assert seen.is_whole
    return 1000 * seen.first_s


def _chat(seed: int, num_bytes: int) -> bytes:
    """Words of letters, so many bytes."""
    rng = random.Random(seed)
    text, length = list[str](), 0
    while length < num_bytes:
        text.append("".join(rng.choices(string.ascii_lowercase, k=rng.randint(*WORD_LETTERS))))
        length += len(text[-1]) + 1
    messages = [{"role": "user", "content": " ".join(text)[:num_bytes]}]
    return json.dumps({"model": MODEL, "messages": messages}).encode()
