"""What a body becomes: each accepted parameter changes what is sent, each wrong length is refused with numbers."""

import json
from dataclasses import replace

import pytest

from fakes import tiny_tokenizer
from fakes.engine_facts import engine_facts
from kvasir_api import hashes, http_apis
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.protocol import generation

GENERATING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

SERVED = ModelProfile(names=("m", "alias"), tokenizer=tiny_tokenizer.tokenizer(GENERATING), max_context=64)
ENCODER = tiny_tokenizer.byte_level()
COMPLETION = {"model": "m", "prompt": "plan Z", "seed": 7}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "plan"}], "seed": 7}


def job(fields=None, *, chat=False, served=SERVED):
    base = CHAT if chat else COMPLETION
    return prepare.from_bytes(json.dumps(base | (fields or {})).encode(), served, chat=chat)


def refused(fields, **kwargs):
    with pytest.raises(Refused) as caught:
        job(fields, **kwargs)
    return caught.value.error


def decoded(made):
    return SERVED.tokenizer.decode(made.requests[0].prompt)


def guided(made):
    """The grammar of an answer and the field that asked for it."""
    grammar = made.requests[0].sampling.grammar
    return None if grammar is None else (grammar.kind, grammar.text, made.grammar_field)


EFFECTS = {
    "max_tokens": (9, lambda j: j.requests[0].sampling.max_tokens, 9),
    "priority": (3, lambda j: j.requests[0].priority, 3),
    "min_tokens": (3, lambda j: j.requests[0].sampling.min_tokens, 3),
    "temperature": (0.5, lambda j: j.requests[0].sampling.temperature, 0.5),
    "top_p": (0.5, lambda j: j.requests[0].sampling.top_p, 0.5),
    "top_k": (4, lambda j: j.requests[0].sampling.top_k, 4),
    "min_p": (0.25, lambda j: j.requests[0].sampling.min_p, 0.25),
    "seed": (11, lambda j: j.requests[0].sampling.seed, 11),
    "n": (3, lambda j: len(j.requests), 3),
    "stop": (["x", "y"], lambda j: j.stops, ("x", "y")),
    "stop_token_ids": ([5], lambda j: j.requests[0].sampling.stop_token_ids, (5,)),
    "include_stop_str_in_output": (True, lambda j: j.include_stop, True),
    "ignore_eos": (True, lambda j: j.requests[0].sampling.ignore_eos, True),
    "stream": (True, lambda j: j.stream, True),
    "stream_options": ({"include_usage": True}, lambda j: j.include_usage, True),
    "model": ("alias", lambda j: j.model, "alias"),
    "cache_salt": ("tenant", lambda j: len(j.requests[0].salt), 32),
    "frequency_penalty": (0.5, lambda j: j.requests[0].sampling.frequency_penalty, 0.5),
    "presence_penalty": (-0.5, lambda j: j.requests[0].sampling.presence_penalty, -0.5),
    "repetition_penalty": (1.5, lambda j: j.requests[0].sampling.repetition_penalty, 1.5),
    "logit_bias": ({"7": 2, "5": -1.5}, lambda j: j.requests[0].sampling.logit_bias, ((5, -1.5), (7, 2.0))),
    "bad_words": (["e"], lambda j: j.requests[0].sampling.bad_words[:1], (tuple(ENCODER.encode("e").ids),)),
    "allowed_token_ids": ([5, 9], lambda j: j.requests[0].sampling.allowed_token_ids, (5, 9)),
    "logprob_token_ids": ([7, 5], lambda j: (j.requests[0].sampling.logprob_token_ids, j.logprobs), ((7, 5), 2)),
    "include_metrics": (True, lambda j: j.include_metrics, True),
    "prompt_logprobs": (3, lambda j: (j.requests[0].sampling.prompt_logprobs, j.prompt_logprobs), (3, 3)),
    "return_token_ids": (True, lambda j: j.token_ids, True),
    "return_tokens_as_token_ids": (True, lambda j: j.as_token_ids, True),
    "skip_special_tokens": (False, lambda j: j.special, True),
    "guided_json": ({"type": "null"}, guided, ("json_schema", '{"type": "null"}', "guided_json")),
    "guided_regex": ("a+", guided, ("regex", "a+", "guided_regex")),
    "guided_choice": (["a", "b"], guided, ("choice", '["a", "b"]', "guided_choice")),
    "guided_grammar": ('start: "a"', guided, ("lark", 'start: "a"', "guided_grammar")),
    "structured_outputs": ({"regex": "a+"}, guided, ("regex", "a+", "structured_outputs")),
    "response_format": ({"type": "json_object"}, guided, ("json_object", "", "response_format")),
    "guided_whitespace_pattern": ("", None, None),  # in test_guided.py
    "guided_decoding_backend": ("guidance", None, None),
    "truncation_side": ("right", None, None),
    "request_id": ("mine-7", lambda j: j.answer_id.endswith("-mine-7"), True),
    "use_beam_search": (True, lambda j: j.requests[0].beam is not None, True),
    "length_penalty": (0.5, None, None),
    "early_stopping": (True, None, None),
    "truncate_prompt_tokens": (2, lambda j: j.requests[0].prompt == j.requests[0].prompt[-2:], True),
}
OF_COMPLETION = {
    "prompt": ([9, 8], lambda j: j.requests[0].prompt, (9, 8)),
    "add_special_tokens": (False, lambda j: j.prompt_tokens, None),
    "best_of": (3, lambda j: (len(j.requests), j.num_choices, j.requests[0].sampling.logprobs), (3, 1, 0)),
    "echo": (True, lambda j: (j.echoes, j.requests[0].sampling.prompt_logprobs), (("plan Z",), -1)),
    "logprobs": (4, lambda j: (j.requests[0].sampling.logprobs, j.logprobs), (4, 4)),
}
OF_CHAT = {
    "messages": (
        [{"role": "assistant", "content": "e"}],
        lambda j: j.requests[0].prompt,
        tuple(tiny_tokenizer.byte_level().encode("<assistant>e\n<assistant>").ids),
    ),
    "max_completion_tokens": (9, lambda j: j.requests[0].sampling.max_tokens, 9),
    "chat_template_kwargs": ({"x": 1}, None, None),
    "logprobs": (True, lambda j: (j.requests[0].sampling.logprobs, j.logprobs), (0, 0)),
    "top_logprobs": (4, None, None),
    "echo": (True, None, None),
    "best_of": (3, None, None),
    "add_special_tokens": (True, None, None),
    **dict.fromkeys(
        ("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "include_reasoning", "async_tool_calls"),
        (None, None, None),  # in test_calling.py and test_handed.py
    ),
    "add_generation_prompt": (False, decoded, "<user>plan\n"),
    "continue_final_message": (True, lambda j: (decoded(j), j.continues), ("<user>plan", True)),
}


ALONE = [name for name, (_, read, _) in EFFECTS.items() if read is not None]


@pytest.mark.parametrize("name", [*ALONE, "prompt", "best_of", "echo", "logprobs"])
def test_each_completion_parameter_has_its_effect(name):
    value, read, want = {**EFFECTS, **OF_COMPLETION}[name]
    assert read(job({name: value})) == want
    assert read(job()) != want


CHAT_NAMES = ["messages", "max_completion_tokens", "logprobs", "add_generation_prompt", "continue_final_message"]


@pytest.mark.parametrize("name", [*ALONE, *CHAT_NAMES])
def test_each_chat_parameter_has_its_effect(name):
    value, read, want = {**EFFECTS, **OF_CHAT}[name]
    assert read(job({name: value}, chat=True)) == want
    assert read(job(chat=True)) != want


def test_every_accepted_parameter_is_in_the_tables():
    assert set(generation.CompletionBody.model_fields) == {*EFFECTS, *OF_COMPLETION}
    assert set(generation.ChatBody.model_fields) == {*EFFECTS, *OF_CHAT}


def test_template_switches_change_the_prompt():
    template = "{{ 'think' if enable_thinking else 'answer' }}"
    served = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(template), max_context=64)
    plain = job(chat=True, served=served)
    thinking = job({"chat_template_kwargs": {"enable_thinking": True}}, chat=True, served=served)
    assert SERVED.tokenizer.decode(thinking.requests[0].prompt) == "think"
    assert SERVED.tokenizer.decode(plain.requests[0].prompt) == "answer"


@pytest.mark.parametrize("chat", [False, True])
def test_a_prompt_is_cut_from_the_side_that_was_said(chat):
    whole = job(chat=chat).requests[0].prompt
    assert job({"truncate_prompt_tokens": 2, "truncation_side": "left"}, chat=chat).requests[0].prompt == whole[-2:]
    assert job({"truncate_prompt_tokens": 2, "truncation_side": "right"}, chat=chat).requests[0].prompt == whole[:2]


def test_an_id_of_the_client_is_that_of_the_answer_and_not_of_the_engine():
    first, second = job({"request_id": "x", "n": 2}), job({"request_id": "x"})
    assert first.answer_id == second.answer_id == "cmpl-x"
    assert len({request.request_id for made in (first, second) for request in made.requests}) == 3


def test_the_id_of_a_chat_begins_with_who_writes_its_answer():
    instance = http_apis.new_instance("default/s")
    made = job(chat=True, served=replace(SERVED, instance=instance))
    assert http_apis.instance_of(made.answer_id) == instance


SEARCH = {"use_beam_search": True, "n": 3}


@pytest.mark.parametrize("chat", [False, True])
def test_a_beam_search_is_one_request_that_answers_under_many_ids(chat):
    made = job({**SEARCH, "length_penalty": 0.5, "early_stopping": "never", "max_tokens": 9}, chat=chat)
    first, *others = made.requests
    assert [request.follows for request in made.requests] == ["", first.request_id, first.request_id]
    assert (first.beam.width, first.beam.length_penalty, first.beam.early_stopping) == (3, 0.5, "never")
    assert first.beam.answers == tuple(request.request_id for request in made.requests)
    assert {request.beam for request in others} == {None}
    assert (made.num_choices, made.num_drawn, first.sampling.max_tokens) == (3, 3, 9)


@pytest.mark.parametrize("chat", [False, True])
def test_best_of_widens_a_beam_search_and_each_prompt_has_its_own(chat):
    made = job({"use_beam_search": True, "n": 2, "best_of": 5, "stream": True}, chat=chat)
    assert [request.beam.width if request.beam else 0 for request in made.requests] == [5, 0]
    if not chat:
        made = job({**SEARCH, "prompt": ["a", "b"]})
        assert [request.beam is None for request in made.requests] == [False, True, True] * 2
        assert made.requests[4].follows == made.requests[3].request_id


READY = engine_facts()


def test_beams_must_fit_into_the_cache_side_by_side():
    served = replace(SERVED, ready=READY)
    prompt = [5] * 9  # two full blocks are shared, so that each of three beams may have two of the other eight
    fitting = {**SEARCH, "prompt": prompt, "max_tokens": 8}
    assert job(fitting, served=served).requests[0].sampling.max_tokens == 8
    error = refused({**fitting, "max_tokens": 9}, served=served)
    assert (error.code, error.param) == ("context_length_exceeded", "max_tokens")
    assert "17 tokens" in error.message
    assert job({"prompt": prompt, "max_tokens": 30}, served=served).requests[0].sampling.max_tokens == 30
    error = refused({**SEARCH, "n": 5}, served=served)
    assert "5 beams are more than the 4 sequences" in error.message


def test_special_tokens_are_added_to_text_prompts_unless_told_otherwise():
    from tokenizers import Tokenizer, processors

    encoder = Tokenizer.from_str(tiny_tokenizer.byte_level().to_str())
    encoder.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    plain = tiny_tokenizer.tokenizer()
    with_bos = type(plain)(encoder=encoder, template=plain.template, vocab_size=plain.vocab_size, longest_token=8)
    served = ModelProfile(names=("m",), tokenizer=with_bos, max_context=64)
    assert job(served=served).requests[0].prompt == (0, *job().requests[0].prompt)
    assert job({"add_special_tokens": False}, served=served).requests[0].prompt == job().requests[0].prompt
    assert job(chat=True, served=served).requests[0].prompt == job(chat=True).requests[0].prompt
    marked = job({"add_special_tokens": True}, chat=True, served=served).requests[0].prompt
    assert marked == (0, *job(chat=True).requests[0].prompt)


@pytest.mark.parametrize(
    ("fields", "top_k", "top_p"), [({"top_p": 0}, 1, 1.0), ({"top_k": -1}, 0, 1.0), ({"top_k": 0}, 0, 1.0)]
)
def test_edge_values_of_top_p_and_top_k(fields, top_k, top_p):
    sampling = job(fields).requests[0].sampling
    assert (sampling.top_k, sampling.top_p) == (top_k, top_p)


def test_choices_and_prompts_make_one_request_each_with_seeds_of_their_own():
    made = job({"prompt": [[1], [2]], "n": 2})
    assert [request.prompt for request in made.requests] == [(1,), (1,), (2,), (2,)]
    assert [request.sampling.seed for request in made.requests] == [7, 8, 7, 8]
    assert len({request.request_id for request in made.requests}) == 4
    assert (made.num_prompts, made.prompt_tokens) == (2, 2)


def test_without_a_seed_two_requests_differ():
    assert job({"seed": None}).requests[0].sampling.seed != job({"seed": None}).requests[0].sampling.seed


def test_negative_seeds_are_seeds():
    assert job({"seed": -1}).requests[0].sampling.seed == (1 << 63) - 1


def test_default_lengths():
    assert job().requests[0].sampling.max_tokens == 16
    assert job({"prompt": [1] * 60}).requests[0].sampling.max_tokens == 4
    chat = job(chat=True)
    assert chat.requests[0].sampling.max_tokens == 64 - chat.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "param", "numbers"),
    [
        ({"prompt": [1] * 64}, "prompt", ["64 tokens", "no room"]),
        ({"prompt": [1] * 100, "max_tokens": 5}, "prompt", ["64", "100", "no room"]),
        ({"prompt": [1] * 60, "max_tokens": 5}, "max_tokens", ["64", "65", "60", "5"]),
        ({"prompt": "x" * 10_000}, "prompt", ["64", "at least 1250"]),
    ],
)
def test_too_long_is_refused_with_the_numbers(fields, param, numbers):
    error = refused(fields)
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", param)
    assert all(number in error.message for number in numbers)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [330]}, "prompt", "330"),
        ({"stop_token_ids": [999]}, "stop_token_ids", "999"),
        ({"min_tokens": 17}, "min_tokens", "17"),
        ({"allowed_token_ids": [999]}, "allowed_token_ids", "999"),
        ({"logit_bias": {"999": 1}}, "logit_bias", "999"),
        ({"echo": True, "max_tokens": 0, "min_tokens": 1}, "min_tokens", "1"),
    ],
)
def test_refusals_that_need_the_model(fields, param, says):
    vocab = SERVED.tokenizer.vocab_size
    fields = {k: [vocab] if v == [330] else v for k, v in fields.items()}
    error = refused(fields)
    assert (error.status, error.param) == (400, param)
    assert says in error.message or str(vocab) in error.message


def test_another_model_is_not_found():
    error = refused({"model": "gpt"})
    assert (error.status, error.code) == (404, "model_not_found")


def test_what_the_template_says_is_told():
    served = ModelProfile(
        names=("m",), tokenizer=tiny_tokenizer.tokenizer("{{ raise_exception('no system') }}"), max_context=64
    )
    error = refused({}, chat=True, served=served)
    assert (error.status, error.param) == (400, "messages")
    assert "no system" in error.message


def test_a_model_without_a_template_sends_chats_elsewhere():
    served = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(None), max_context=64)
    assert "/v1/completions" in refused({}, chat=True, served=served).message


def test_a_developer_message_is_a_system_message():
    chat = job({"messages": [{"role": "developer", "content": "e"}]}, chat=True)
    assert SERVED.tokenizer.decode(chat.requests[0].prompt) == "<system>e\n<assistant>"


def test_route_hashes_are_those_that_the_gateway_computes():
    served = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(), max_context=4096)
    long = {"messages": [{"role": "user", "content": "plan " * 200}]}
    want = hashes.route_hashes(hashes.request_text({"model": "m", **long}), model="m")
    assert len(want) > 1
    assert job(long, chat=True, served=served).requests[0].route_hashes == want
    text = {"prompt": "plan " * 200}
    assert job(text, served=served).requests[0].route_hashes == hashes.route_hashes(text["prompt"], model="m")


def test_top_logprobs_are_how_many_the_engine_reports():
    made = job({"logprobs": True, "top_logprobs": 4}, chat=True)
    assert (made.logprobs, made.requests[0].sampling.logprobs) == (4, 4)


def test_echoed_logprobs_are_those_of_the_prompt_too():
    made = job({"echo": True, "logprobs": 2, "prompt_logprobs": 5, "prompt": ["plan", [9, 8]], "max_tokens": 0})
    assert [request.sampling.prompt_logprobs for request in made.requests] == [5, 5]
    assert made.echoes == ("plan", SERVED.tokenizer.decode([9, 8]))
    assert made.only_prompt
    assert made.requests[0].sampling.max_tokens == 1, "the engine draws one that nobody sees"


def test_a_cut_prompt_keeps_its_end_and_loses_its_route():
    ids = list(range(5, 65))
    made = job({"prompt": ids, "truncate_prompt_tokens": 7, "echo": True})
    assert made.requests[0].prompt == tuple(ids[-7:])
    assert made.requests[0].route_hashes == ()
    assert made.echoes == (SERVED.tokenizer.decode(ids[-7:]),)
    fitting = job({"prompt": "plan " * 500, "truncate_prompt_tokens": -1, "max_tokens": 10})
    assert len(fitting.requests[0].prompt) == 54
    assert job({"truncate_prompt_tokens": 3}, chat=True).requests[0].prompt == job(chat=True).requests[0].prompt[-3:]


def test_bad_words_are_forbidden_with_a_blank_before_them_too():
    words = job({"bad_words": ["plan", " e"]}).requests[0].sampling.bad_words
    assert tuple(ENCODER.encode("plan").ids) in words
    assert tuple(ENCODER.encode(" plan").ids) in words
    assert tuple(ENCODER.encode("e").ids) in words, "leading blanks do not matter"


@pytest.mark.parametrize(
    ("content", "shown", "want"),
    [
        ("say  ", "<a>{{ m.content }}</a>", "<a>say  "),
        ("say  ", "<a>{{ m.content | trim }}</a>", "<a>say"),
        ("  say", "<a>{{ m.content | trim }}</a>", "<a>say"),
        ("a", "<a>{{ m.content }}</b>", "<a>a"),
    ],
)
def test_a_last_message_is_continued_whether_the_template_strips_it_or_not(content, shown, want):
    template = "{% for m in messages %}" + shown + "{% endfor %}"
    served = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(template), max_context=64)
    made = job(
        {"messages": [{"role": "assistant", "content": content}], "continue_final_message": True},
        chat=True,
        served=served,
    )
    assert decoded(made) == want


def test_a_template_that_hides_the_last_message_cannot_continue_it():
    served = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer("nothing"), max_context=64)
    error = refused({"continue_final_message": True}, chat=True, served=served)
    assert (error.param, error.code) == ("messages", "chat_template_error")
