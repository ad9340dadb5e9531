"""Which requests a measurement sends: prompts of about the wanted lengths, the same in every run with the same seed.

Pure. A prompt is made of common words, most of which are one token to most tokenizers; the real counts are in the
server's usage and in the report. Prompts are drawn word by word, so they share the common prefix and little else.
"""

import random
from dataclasses import dataclass
from typing import Final

WORDS: Final = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city name team minute idea body back parent face level office door
health person art war history party result change morning reason research girl guy moment air teacher force
education
""".split()  # noqa: SIM905 - a list of a hundred literals reads worse


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Lengths in tokens, about. Lengths are drawn evenly from least to most; shared_tokens begin every prompt alike."""

    requests: int
    concurrency: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    shared_tokens: int = 0


PRESETS: Final = {
    "w1": Workload(requests=3, concurrency=1, prompt_tokens=(128, 128), output_tokens=(128, 128)),
    "w2": Workload(requests=32, concurrency=32, prompt_tokens=(16, 512), output_tokens=(16, 256)),
    "w3": Workload(requests=32, concurrency=8, prompt_tokens=(64, 64), output_tokens=(32, 32), shared_tokens=1024),
    "w4": Workload(requests=2, concurrency=1, prompt_tokens=(64, 64), output_tokens=(16, 16), shared_tokens=4096),
}
"""Alone; a crowd of all lengths; a long common prefix; a long prompt cold and then warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request. words: of its prompt, which is about as many tokens."""

    prompt: str
    words: int
    output_tokens: int


def requests(workload: Workload, seed: int) -> list[WorkloadRequest]:
    """The requests in the order in which they are sent. Lengths follow from the workload alone, words from the seed."""
    lengths = random.Random("lengths")
    words = random.Random(f"words {seed}")
    shared = _text(workload.shared_tokens, words)
    made = []
    for _ in range(workload.requests):
        own = lengths.randint(*workload.prompt_tokens)
        output_tokens = lengths.randint(*workload.output_tokens)
        prompt = " ".join(part for part in (shared, _text(own, words)) if part)
        made.append(WorkloadRequest(prompt=prompt, words=workload.shared_tokens + own, output_tokens=output_tokens))
    return made


def lengths(text: str) -> tuple[int, int]:
    """128 or 16-512, as least and most. Raises ValueError."""
    least, dash, most = text.partition("-")
    try:
        pair = int(least), int(most if dash else least)
    except ValueError:
        pair = (0, 0)
    if not 1 <= pair[0] <= pair[1] <= 1_000_000:
        raise ValueError(f"{text!r} is not a number of tokens such as 128, or a range such as 16-512")
    return pair


def _text(count: int, words: random.Random) -> str:
    return " ".join(words.choices(WORDS, k=count))
