"""Logprobs beside texts: exact bytes, right places, nothing lost or repeated however a text is cut into events."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import tiny_tokenizer
from kvasir_runtime.frontend import logprobs
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import OutputToken, TokenLabels
from kvasir_runtime.frontend.output_processor import OutputProcessor, best_choices, output_processors
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.wire import EngineOutput, EngineRequest, Logprobs, SamplingConfig

TOKENIZER = tiny_tokenizer.tokenizer()
LABELS = TokenLabels(TOKENIZER)
FALLBACK = Tokenizer(encoder=tiny_tokenizer.byte_fallback(), template=None, vocab_size=300, longest_token=5)
TEXT = "Grüße 你好 🚀 plan"


def ids(text):
    return tuple(TOKENIZER.encoder.encode(text).ids)


def job(*, prompts=((5,),), drawn=1, **fields):
    requests = tuple(
        EngineRequest(request_id=f"r{p}-{c}", prompt=prompt, sampling=SamplingConfig(max_tokens=99))
        for p, prompt in enumerate(prompts)
        for c in range(drawn)
    )
    defaults = {"logprobs": 1, "stops": (), "include_stop": False, "chat": False, "continues": True}
    return GenerationRequest(
        answer_id="a",
        model="m",
        stream=True,
        include_usage=False,
        requests=requests,
        num_prompts=len(prompts),
        prompt_tokens=1,
        **{**defaults, **fields},
    )


def found(number):
    return Logprobs(-float(number), number + 1, (7, 9), (-0.5, -1.5))


def event(token_ids, reason=None, start=0, **fields):
    return EngineOutput(
        request_id="r0-0",
        token_ids=tuple(token_ids),
        logprobs=tuple(found(start + place) for place in range(len(token_ids))),
        finish_reason=reason,
        **fields,
    )


def run(made: OutputProcessor, events):
    """Text, what was said beside it, and whether each token came with the text that it begins."""
    text, said = "", []
    for item in events:
        delta = made.accept(item)
        text += delta.text
        new = delta.tokens
        assert made.open is False or all(token.offset < len(text) for token in new)
        said += new
    return text, said


def test_bytes_of_tokens_are_those_of_the_text():
    for tokenizer, text in ((TOKENIZER, TEXT), (FALLBACK, " the plan é")):
        tokens = tokenizer.encoder.encode(text).ids
        assert b"".join(map(TokenLabels(tokenizer).raw, tokens)).decode().strip() == text.strip()
    assert LABELS.raw(1) == b"</s>"


def test_a_part_of_a_character_is_written_as_its_bytes():
    first, second = ids("🚀")
    assert LABELS.token(first) == "\\xf0\\x9f"
    assert LABELS.token(second, prefix="bytes:") == "bytes:\\x9a\\x80"
    assert TokenLabels(TOKENIZER, as_ids=True).token(first) == f"token_id:{first}"


def test_places_are_those_of_the_characters():
    text, said = run(output_processors(job(), TOKENIZER)[0], [event(ids(TEXT), "length")])
    assert text == TEXT
    assert [token.token_id for token in said] == list(ids(TEXT))
    raw = b""
    for token in said:
        whole = raw.decode(errors="ignore")
        assert token.offset == len(whole), "the character that the token begins or goes on with"
        raw += LABELS.raw(token.token_id)


@settings(max_examples=60)
@given(
    text=st.text(alphabet="aXYZ é你🚀", max_size=12),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    stop=st.sampled_from([(), ("XY",), ("Z",), ("é你",)]),
    include=st.booleans(),
)
def test_any_cut_into_events_gives_the_same_tokens(text, cuts, stop, include):
    tokens = ids(text)
    whole = run(
        output_processors(job(stops=stop, include_stop=include), TOKENIZER)[0], [event(tokens), event((), "length")]
    )
    places = sorted({0, *(cut for cut in cuts if cut < len(tokens)), len(tokens)})
    parts = [event(tokens[start:end], start=start) for start, end in itertools.pairwise(places)]
    assert (
        run(output_processors(job(stops=stop, include_stop=include), TOKENIZER)[0], [*parts, event((), "length")])
        == whole
    )
    shown_text, said = whole
    assert [token.token_id for token in said] == list(tokens[: len(said)])
    assert all(token.offset < len(shown_text) for token in said) or not stop or shown_text == text


def test_tokens_of_a_cut_stop_string_are_not_told():
    text, said = run(output_processors(job(stops=("YZ",)), TOKENIZER)[0], [event(ids("aX")), event(ids("Y"), start=2),
                     event(ids("Zb"), start=3)])  # fmt: skip
    assert text == "aX"
    assert b"".join(LABELS.raw(token.token_id) for token in said) == b"aX"


def test_an_echo_comes_first_with_its_logprobs_and_shifts_the_places():
    prompt = ids("é plan")
    (made,) = output_processors(job(prompts=(prompt,), echoes=("é plan",)), TOKENIZER)
    early = EngineOutput(request_id="r0-0", prompt_logprobs=tuple(found(place) for place in range(1, len(prompt) - 1)))
    first = made.accept(early)
    assert (first.text, first.reason) == ("", None)
    late = event(ids("ab"), "length", start=50)
    text, said = run(made, [EngineOutput(**{**{f: getattr(late, f) for f in late.__struct_fields__},
                     "prompt_logprobs": (found(len(prompt) - 1),)})])  # fmt: skip
    assert text == "é planab"
    assert [token.token_id for token in said] == [*prompt, *ids("ab")]
    assert [token.logprobs for token in said[: len(prompt)]] == [None, *(found(p) for p in range(1, len(prompt)))]
    assert said[-1].offset == len("é plana")


def test_a_prompt_that_is_only_scored_has_no_answer():
    prompt = ids("plan")
    (made,) = output_processors(job(prompts=(prompt,), echoes=("plan",), only_prompt=True), TOKENIZER)
    delta = made.accept(event(ids("a"), "stop", prompt_logprobs=tuple(found(p) for p in range(1, len(prompt)))))
    assert (delta.text, delta.reason, made.num_tokens, made.open) == ("plan", "length", 0, False)
    assert [token.token_id for token in delta.tokens] == list(prompt)


def test_token_ids_are_all_of_them_with_the_one_that_ended_it():
    (made,) = output_processors(job(token_ids=True, logprobs=-1), TOKENIZER)
    assert made.accept(event((8, 9))).token_ids == [8, 9]
    assert made.accept(event((10,), "stop", stop_token_id=1)).token_ids == [10, 1]
    assert made.accept(event(())).token_ids == []


def test_special_tokens_and_the_one_that_ends_are_shown_where_requested():
    def text(**fields):
        (made,) = output_processors(job(logprobs=-1, **fields), TOKENIZER)
        return made.accept(event((*ids("a"), 0), "stop", stop_token_id=1)).text

    assert text() == "a"
    assert text(special=True) == "a<s>"
    assert text(special=True, include_stop=True) == "a<s></s>"


def test_the_best_are_the_likeliest_as_a_whole():
    made = job(prompts=((5,), (6,)), drawn=3, num_choices=2, logprobs=-1)
    choices = output_processors(made, TOKENIZER)
    for choice, total in zip(choices, (-3.0, -1.0, -2.0, -5.0, -9.0, -4.0), strict=True):
        half = Logprobs(total / 2, 1)
        choice.accept(EngineOutput(request_id="r", token_ids=(5, 6), logprobs=(half, half)))
    assert best_choices(made, choices) == [1, 2, 5, 3]
    assert best_choices(job(drawn=1), choices[:1]) == [0]


def test_documents_of_both_shapes():
    first, second = ids("🚀")
    said = [
        OutputToken(first, 3, Logprobs(-0.1, 1, (first, second), (-0.1, float("-inf")))),
        OutputToken(second, 3, None),
    ]
    text = logprobs.of_text(said, LABELS, 2)
    assert text.text_offset == [3, 3]
    assert text.token_logprobs == [-0.1, None]
    assert text.top_logprobs == [{"bytes:\\xf0\\x9f": -0.1, "bytes:\\x9a\\x80": -9999.0}, None]
    (content,) = logprobs.of_chat(said, LABELS, 1).content
    assert (content.bytes, content.logprob, len(content.top_logprobs)) == ([0xF0, 0x9F], -0.1, 1)
    prompt = logprobs.of_prompt([5, 9], [Logprobs(-3.0, 40, (7, 8), (-0.5, -1.0))], LABELS, 1)
    assert prompt == [
        None,
        {
            "9": {"logprob": -3.0, "rank": 40, "decoded_token": LABELS.token(9)},
            "7": {"logprob": -0.5, "rank": 1, "decoded_token": LABELS.token(7)},
        },
    ]
