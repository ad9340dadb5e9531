"""From a body for embeddings, a ranking or scores to the prompts that the engine computes, and what follows from them.

Called in worker threads. It decides and refuses; it knows nothing of sockets, the event loop or written answers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile, served_name
from kvasir_runtime.frontend.pooling import inputs, vectors
from kvasir_runtime.frontend.pooling.capabilities import EmbeddingCapability, ScoringCapability
from kvasir_runtime.frontend.pooling.inputs import Cut, JoinedTexts
from kvasir_runtime.frontend.pooling.protocol import EmbeddingBody, RerankBody, ScoreBody
from kvasir_runtime.wire import EngineOutput, EngineRequest, PoolingConfig, SamplingConfig

MAX_TOTAL_TOKENS: Final = 1 << 20


Prompts = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInputs:
    """Prompts to embed, whatever the answer looks like. vector: of a prompt, from its last event."""

    prompts: Prompts
    pooling: PoolingConfig
    vector: Callable[[EngineOutput], vectors.Vector]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringInputs:
    """Prompts for pairs of texts. scores: of each pair, from the last events of all prompts, in order.

    seconds: of each prompt where its second text begins, 0 where there is one; () for no second texts.
    """

    prompts: Prompts
    pooling: PoolingConfig
    seconds: Sequence[int] = ()
    scores: Callable[[Sequence[EngineOutput]], list[float]]


def embed(body: EmbeddingBody, profile: ModelProfile) -> EmbeddingInputs:
    """Raises Refused."""
    served_name(body.model, profile)
    ability = profile.capabilities.embedding
    if isinstance(ability, str):
        raise _cannot(f"This model gives no embeddings. {ability}")
    dimensions = _dimensions(body.dimensions, ability)
    cut = Cut(keep=body.truncate_prompt_tokens, special=body.add_special_tokens)
    normalize = ability.normalize if body.normalize is None else body.normalize
    before = _prompt(body.prompt_name, ability)
    sources = (before + source if isinstance(source, str) else source for source in body.input)
    return EmbeddingInputs(
        prompts=_bounded((inputs.single(source, profile, cut, param="input") for source in sources), "input"),
        pooling=PoolingConfig(kind=ability.kind),
        vector=lambda event: vectors.embedding(vectors.read(event.pooled), dimensions=dimensions, normalize=normalize),
    )


def rank(body: RerankBody, profile: ModelProfile) -> ScoringInputs:
    """The query with each document. Raises Refused."""
    return _scored(body, [body.query], body.documents, profile, ("query", "documents"), body.max_tokens_per_doc)


def score(body: ScoreBody, profile: ModelProfile) -> ScoringInputs:
    """text_1 with each of text_2, or pair by pair. Raises Refused."""
    return _scored(body, body.text_1, body.text_2, profile, ("text_1", "text_2"), None)


def engine_requests(answer_id: str, made: EmbeddingInputs | ScoringInputs) -> tuple[EngineRequest, ...]:
    """One for each prompt, in order."""
    sampling, pooling = SamplingConfig(max_tokens=1), [made.pooling] * len(made.prompts)
    if isinstance(made, ScoringInputs) and made.seconds:
        pooling = [msgspec.structs.replace(made.pooling, second_from=at) for at in made.seconds]
    return tuple(
        EngineRequest(
            request_id=f"{answer_id}-{number}",
            prompt=prompt,
            sampling=sampling,
            pooling=pooling[number],
            admitted=number > 0,
        )
        for number, prompt in enumerate(made.prompts)
    )


def _scored(
    body: RerankBody | ScoreBody,
    firsts: Sequence[str],
    seconds: Sequence[str],
    profile: ModelProfile,
    params: tuple[str, str],
    second_keep: int | None,
) -> ScoringInputs:
    """One first text goes with each second, or each with its own."""
    served_name(body.model, profile)
    ability = profile.capabilities.scoring
    if isinstance(ability, str):
        raise _cannot(f"This model gives no scores. {ability}")
    if body.instruction is not None and ability.kind != "judgement":
        message = "`instruction` has no effect on this model, which is not asked for a judgement."
        raise Refused(openai_errors.invalid(message, param="instruction", code="unsupported_parameter"))
    cut = Cut(keep=body.truncate_prompt_tokens, special=body.add_special_tokens, second_keep=second_keep)
    pairs = list(zip(firsts if len(firsts) == len(seconds) else list(firsts) * len(seconds), seconds, strict=True))
    if ability.kind == "similarity":
        return _similarities(ability, firsts, seconds, profile, cut, params)
    begins: list[int] = []
    made: Iterable[tuple[int, ...]]
    if ability.kind == "judgement":
        said, param = body.instruction, params[1]
        made = (inputs.judgement(first, second, said, profile, cut, param=param) for first, second in pairs)
    else:
        joined = (inputs.pair(first, second, profile, cut, param=params[1]) for first, second in pairs)
        made = _ids_of(joined, begins)
    return ScoringInputs(
        prompts=_bounded(made, params[1]),
        pooling=ability.pooling,
        seconds=begins,
        scores=lambda events: [_likelihood(ability, event) for event in events],
    )


def _ids_of(joined: Iterable[JoinedTexts], begins: list[int]) -> Iterator[tuple[int, ...]]:
    """Of pairs, one by one; where their second texts begin is appended to begins."""
    for texts in joined:
        begins.append(texts.second_from)
        yield texts.ids


def _likelihood(ability: ScoringCapability, event: EngineOutput) -> float:
    """0..1: of the one label, or of yes over no; a logit where the model is for that."""
    logits = vectors.read(event.pooled)
    if not ability.is_probability:
        return float(logits[0])
    return vectors.sigmoid(float(logits[0]) if ability.kind == "label" else float(logits[1] - logits[0]))


def _similarities(
    ability: ScoringCapability,
    firsts: Sequence[str],
    seconds: Sequence[str],
    profile: ModelProfile,
    cut: Cut,
    params: tuple[str, str],
) -> ScoringInputs:
    """Every text is embedded once."""
    second_cut = cut if cut.second_keep is None else Cut(keep=cut.second_keep, special=cut.special)
    texts = [(text, cut, params[0]) for text in firsts] + [(text, second_cut, params[1]) for text in seconds]
    prompts = _bounded((inputs.single(text, profile, how, param=param) for text, how, param in texts), params[1])

    def similarities(events: Sequence[EngineOutput]) -> list[float]:
        found = [vectors.read(event.pooled) for event in events]
        ones, others = found[: len(firsts)], found[len(firsts) :]
        return [vectors.similarity(ones[index % len(ones)], other) for index, other in enumerate(others)]

    return ScoringInputs(prompts=prompts, pooling=ability.pooling, scores=similarities)


def _prompt(name: str | None, ability: EmbeddingCapability) -> str:
    """What is put before each text: the prompt of that name, or the model's default."""
    if name is None:
        return ability.prompt
    if name not in ability.prompts:
        known = (
            f"one of {', '.join(sorted(ability.prompts))}" if ability.prompts else "none, as the model has no prompts"
        )
        message = f"The model has no prompt named {name}; expected {known}."
        raise Refused(openai_errors.invalid(message, param="prompt_name", code="invalid_value"))
    return ability.prompts[name]


def _dimensions(asked: int | None, ability: EmbeddingCapability) -> int | None:
    if asked is None or asked == ability.size:
        return None
    if not ability.shortens:
        message = (
            f"The model was not made for embeddings of other than {ability.size} numbers; "
            "start it with --matryoshka if it was."
        )
        raise Refused(openai_errors.invalid(message, param="dimensions", code="unsupported_parameter"))
    if asked > ability.size or (ability.sizes and asked not in ability.sizes):
        known = f"one of {', '.join(map(str, ability.sizes))}" if ability.sizes else f"at most {ability.size}"
        message = f"dimensions {asked} is not possible; expected {known}."
        raise Refused(openai_errors.invalid(message, param="dimensions", code="invalid_value"))
    return asked


def _bounded(prompts: Iterable[tuple[int, ...]], param: str) -> Prompts:
    """All prompts of a request, made one by one: a client decides neither our memory nor how long a thread works."""
    made: Prompts = []
    total = 0
    for prompt in prompts:
        total += len(prompt)
        if total > MAX_TOTAL_TOKENS:
            message = f"The texts have more than {MAX_TOTAL_TOKENS} tokens together; send fewer of them at a time."
            raise Refused(openai_errors.invalid(message, param=param, code="invalid_value"))
        made.append(prompt)
    return made


def _cannot(message: str) -> Refused:
    return Refused(openai_errors.invalid(message, param="model", code="unsupported_model"))
