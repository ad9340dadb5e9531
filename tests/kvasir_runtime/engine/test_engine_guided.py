"""Scheduler, loop, real runner and real grammars: every answer is valid, and forcing tokens changes none of them."""

import json

import pytest
import torch
from tokenizers import Tokenizer

from fakes import checkpoints, grammars
from fakes.checkpoints import Shape
from fakes.clients import FakeClients
from fakes.grammars import of_schema
from fakes.overlapping import Overlapping
from fakes.serving import request
from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.loop import Engine
from kvasir_runtime.engine.replay import replay
from kvasir_runtime.engine.start import limits_of
from kvasir_runtime.engine.trace import TraceFile, records
from kvasir_runtime.guide import validate, vocabulary
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import Grammar, Hello, Submit

ALL = grammars.all_of_them()
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
ENTRY = {
    **COMPACT,
    "type": "object",
    "properties": {
        "the name of the service": {"enum": ["operator", "gateway", "engine"]},
        "the number of replicas": {"type": "integer", "minimum": 1, "maximum": 9},
        "it is ready to take requests": {"type": "boolean"},
    },
    "required": ["the name of the service", "the number of replicas", "it is ready to take requests"],
    "additionalProperties": False,
}
LETTERS = Grammar(kind="regex", text="[a-z]{1,40}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(seed=2))


@pytest.fixture(scope="module")
def text_of(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False)


@pytest.fixture(scope="module")
def words(folder):
    return vocabulary.load(folder, 320, (0,))


class Seen:
    """What a client saw of one request."""

    def __init__(self):
        self.tokens, self.logprobs, self.reason, self.stop, self.message, self.num_events = [], [], "", None, "", 0


def served(folder, requests, *, depth=1, trace=None, device_stream=None, **options):
    """Answers by request, and the last state."""
    torch.set_num_threads(1)
    defaults = {"kv_cache_tokens": 16_384, "max_batch_tokens": 64, "max_sequences": 12, "max_model_len": 512}
    options = ServeOptions(model=str(folder), **{**defaults, **options})
    runner = build(options, lambda _: None, device_stream)
    limits = limits_of(options, runner.facts)
    clients = FakeClients([[Hello()], *[[Submit(made)] for made in requests]], patience_s=0.02)
    Engine(
        scheduler=Scheduler(limits),
        runner=runner,
        clients=clients,
        state=RuntimeState(),
        depth=depth,
        trace=trace,
    ).run()
    seen = {made.request_id: Seen() for made in requests}
    for event in clients.events():
        one = seen[event.request_id]
        one.tokens += event.token_ids
        one.logprobs += event.logprobs
        one.reason, one.stop, one.message = event.finish_reason, event.stop_token_id, event.message
        one.num_events += 1
    return seen, clients.steps()[-1].state


def guided(name, grammar, words, prompt=(9, 8, 7), **sampling):
    """A request whose grammar has been tried out, as the API process does it."""
    found = validate.verdict(grammar, words)
    assert not found.error
    return request(name, prompt, **{"max_tokens": 150, "grammar": found.grammar, **sampling})


@pytest.mark.parametrize(
    ("depth", "device_stream"), [(1, None), (2, None), (2, Overlapping())], ids=["1", "2", "2-device"]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_is_one_of_its_grammar(folder, words, text_of, depth, device_stream, temperature):
    requests = [
        guided(name, grammar, words, prompt=[3 + number, 9], temperature=temperature, seed=number)
        for number, (name, (grammar, _)) in enumerate(ALL.items())
    ]
    seen, state = served(folder, requests, depth=depth, device_stream=device_stream)
    ended = 0
    for name, (_, right) in ALL.items():
        one = seen[name]
        assert one.reason in {"stop", "length"}, one.message
        if one.reason == "stop":
            text = text_of(one.tokens)
            assert right(text), (name, text)
            ended += 1
    assert ended > 0.9 * len(ALL), "the others may nest, or write blanks, as long as they like"
    assert state.kv.pinned_tokens == 0


def test_forced_tokens_change_nothing_and_take_fewer_steps(folder, words, text_of):
    """A request with logprobs gets no forced tokens, so both ways can be had."""
    for temperature in (0.0, 1.0):
        forced, plain = (
            served(
                folder,
                [
                    guided(name, grammar, words, prompt=[3 + number, 9], temperature=temperature, seed=5, logprobs=top)
                    for number, (name, (grammar, _)) in enumerate([*ALL.items(), ("entry", (of_schema(ENTRY), None))])
                ],
            )[0]
            for top in (-1, 0)
        )
        assert {name: one.tokens for name, one in forced.items()} == {name: one.tokens for name, one in plain.items()}
        assert {name: one.reason for name, one in forced.items()} == {name: one.reason for name, one in plain.items()}
        entry = forced["entry"]
        assert json.loads(text_of(entry.tokens)).keys() == ENTRY["properties"].keys()
        assert plain["entry"].num_events == len(entry.tokens)
        assert entry.num_events < len(entry.tokens) / 3
        assert all(one.num_events <= plain[name].num_events for name, one in forced.items())


def test_pressure_and_depth_change_no_answer(folder, words, text_of):
    """Preempted answers go on where they stood in their grammars; those that are not guided go on meanwhile."""
    requests = []
    for number in range(16):
        schema = {"type": "array", "items": ENTRY, "minItems": 2, "maxItems": 2, **COMPACT}
        prompt = [3 + (7 * number + step) % 300 for step in range(30 + number)]
        made = guided(f"g{number}", of_schema(schema), words, prompt=prompt, temperature=1.0, seed=number)
        requests += [made, request(f"p{number}", prompt, max_tokens=60)]
    roomy, _ = served(folder, requests)
    for depth, device_stream in ((1, None), (2, None), (1, Overlapping()), (2, Overlapping()), (3, Overlapping())):
        tight, state = served(
            folder, requests, depth=depth, device_stream=device_stream, kv_cache_tokens=640, block_size=8
        )
        assert state.totals.preemptions > 0
        assert {name: one.tokens for name, one in tight.items()} == {name: one.tokens for name, one in roomy.items()}
        assert state.kv.pinned_tokens == 0
    for number in range(16):
        assert len(json.loads(text_of(roomy[f"g{number}"].tokens))) == 2
        assert roomy[f"g{number}"].reason == "stop"


def test_what_is_launched_after_forced_tokens_were_taken_early_comes_to_nothing(folder, words):
    """With three plans in flight a draw may wait for tokens that the maker of the third plan has not seen."""
    device_stream = Overlapping()
    options = ServeOptions(model=str(folder), kv_cache_tokens=512, max_sequences=4, max_model_len=128)
    runner = build(options, lambda _: None, device_stream)
    forced, free = (Grammar(kind="regex", text=text) for text in ("[ab] the number of replicas [0-9]{20}", "[a-z]{20}"))
    prompt = (5, 6, 7)
    joins = tuple(
        Join(
            row=row,
            request_id=f"{row}",
            tokens=prompt,
            prompt_tokens=3,
            computed_tokens=0,
            tables=((2 * row, 2 * row + 1),),
            sampling=guided("g", grammar, words, prompt=prompt).sampling,
        )
        for row, grammar in enumerate((forced, free))
    )

    def chunk(row, start, num_tokens=1):
        return Chunk(row=row, start=start, num_tokens=num_tokens, samples=True)

    flying = [
        runner.launch(StepPlan(step=1, joins=joins, chunks=(chunk(0, 0, 3), chunk(1, 0, 3)))),
        runner.launch(StepPlan(step=2, chunks=(chunk(1, 3),))),
        runner.launch(StepPlan(step=3, chunks=(chunk(0, 3),))),
    ]
    first, second, third = (runner.collect(one).sampled for one in flying)
    assert len(first[0].tokens) > 1
    assert [len(first[1].tokens), len(second[0].tokens)] == [1, 1]
    assert third[0].tokens == ()


def test_a_guided_answer_moves_in_every_step_though_its_masks_wait(folder, words):
    """With two plans in flight its forward pass is launched before its last token is known."""
    letters = [guided(f"g{number}", Grammar(kind="regex", text="[a-z]{30}"), words) for number in range(3)]
    plain = [request("plain", [5, 6], max_tokens=30)]
    alone, _ = served(folder, letters)
    device_stream = Overlapping()
    seen, state = served(folder, letters + plain, depth=2, device_stream=device_stream)
    assert {name: seen[name].tokens for name in alone} == {name: one.tokens for name, one in alone.items()}
    # Thirty tokens each: were every second step without them, there would be sixty.
    assert state.step < 45


def test_a_grammar_that_fails_ends_its_own_request_alone(folder, words):
    bad = [
        Grammar(kind="regex", text="("),
        Grammar(kind="lark", text='start: "a" start'),
        Grammar(kind="choice", text="["),
    ]
    requests = [request(f"b{i}", [5, 6], grammar=grammar, max_tokens=99) for i, grammar in enumerate(bad)]
    requests += [request("plain", [5, 6], max_tokens=20), guided("good", LETTERS, words)]
    seen, state = served(folder, requests)
    assert [seen[f"b{i}"].reason for i in range(3)] == ["error"] * 3
    assert "unclosed group" in seen["b0"].message
    assert "Too many items" in seen["b1"].message
    assert "not valid JSON" in seen["b2"].message
    assert (seen["plain"].reason, seen["good"].reason) == ("length", "stop")
    assert (state.running, state.waiting, state.kv.pinned_tokens) == (0, 0, 0)


ENDS = {
    "the end of the grammar": (Grammar(kind="regex", text="ab"), {}, "ab", None),
    "EOS where the grammar accepts": (Grammar(kind="regex", text="ab[cd]*"), {"logit_bias": ((0, 100.0),)}, "ab", 0),
    "min_tokens": (Grammar(kind="regex", text="[ab]*"), {"logit_bias": ((0, 100.0),), "min_tokens": 5}, None, 0),
    "min_tokens of a short grammar": (Grammar(kind="regex", text="ab"), {"min_tokens": 50}, "ab", None),
    "ignore_eos": (
        Grammar(kind="regex", text="[ab]{3,9}"),
        {"logit_bias": ((0, 100.0),), "ignore_eos": True},
        None,
        None,
    ),
    "a stop id that is no text": (
        Grammar(kind="regex", text="ab[cd]*"),
        {"logit_bias": ((2, 100.0),), "stop_token_ids": (2,)},
        "ab",
        2,
    ),
    "max_tokens": (Grammar(kind="regex", text="[ab]{50}"), {"max_tokens": 7}, None, None),
}
LENGTHS = {"min_tokens": 5, "ignore_eos": 9, "max_tokens": 7}


@pytest.mark.parametrize("name", ENDS)
def test_where_an_answer_ends(folder, words, text_of, name):
    grammar, sampling, text, stop = ENDS[name]
    one = served(folder, [guided("r", grammar, words, **sampling)])[0]["r"]
    assert one.reason == ("length" if name == "max_tokens" else "stop")
    assert one.stop == stop
    if text is not None:
        assert text_of(one.tokens) == text
    else:
        assert len(text_of(one.tokens)) >= LENGTHS[name]
    assert 0 not in one.tokens


def test_stop_ids_wait_until_the_grammar_accepts_unless_it_wants_them(folder, words, text_of):
    a, b = words.tokenizer.tokenize_str("a")[0], words.tokenizer.tokenize_str("b")[0]
    free = guided(
        "free", Grammar(kind="regex", text="[a-c]{6}[bc]*"), words, logit_bias=((a, 50.0),), stop_token_ids=(a,)
    )
    bound = guided("bound", Grammar(kind="regex", text="bbab"), words, stop_token_ids=(a,), logit_bias=((b, 9.0),))
    seen, _ = served(folder, [free, bound])
    assert seen["free"].stop == a
    assert a not in seen["free"].tokens
    assert len(text_of(seen["free"].tokens)) >= 6
    assert (text_of(seen["bound"].tokens), seen["bound"].stop) == ("bb", a)


def test_the_grammar_wins_over_every_other_wish(folder, words, text_of):
    """Where others forbid all that it allows; else they choose among what it allows."""
    a, b = words.tokenizer.tokenize_str("a")[0], words.tokenizer.tokenize_str("b")[0]
    either = Grammar(kind="regex", text="[ab]{4}")
    wishes = {
        "biased": {"logit_bias": ((a, 100.0),)},
        "allowed": {"allowed_token_ids": (b, 77)},
        "nothing allowed": {"allowed_token_ids": (77,)},
        "bad": {"bad_words": ((a,),)},
        "all bad": {"bad_words": ((a,), (b,))},
    }
    requests = [guided(name, either, words, logprobs=0, **wish) for name, wish in wishes.items()]
    texts = {name: text_of(one.tokens) for name, one in served(folder, requests)[0].items()}
    assert texts["biased"] == "aaaa"
    assert texts["allowed"] == texts["bad"] == "bbbb"
    assert set(texts["nothing allowed"]) | set(texts["all bad"]) <= {"a", "b"}
    assert {len(text) for text in texts.values()} == {4}


def test_penalties_count_forced_tokens_too(folder, words):
    """As they do without forcing."""
    grammar = Grammar(kind="regex", text="(abab|cdcd)-[abcd]{12}")
    both = [
        served(folder, [guided("r", grammar, words, frequency_penalty=2.0, presence_penalty=1.0, logprobs=top)])[0]["r"]
        for top in (-1, 0)
    ]
    assert both[0].tokens == both[1].tokens
    assert both[0].num_events < both[1].num_events


def test_logprobs_are_those_of_the_unmasked_logits(folder, words):
    one = served(folder, [guided("r", Grammar(kind="regex", text="[ab]{4}"), words, logprobs=3)])[0]["r"]
    assert len(one.logprobs) == len(one.tokens)
    assert any(made.rank > 1 for made in one.logprobs)
    assert any(set(made.top_ids) - set(one.tokens) for made in one.logprobs)


def test_a_trace_with_forced_tokens_replays(folder, words, tmp_path):
    """What a grammar forced came with the results, so a scheduler without a runner plans the same."""
    requests = [guided(name, grammar, words) for name, (grammar, _) in list(ALL.items())[:12]]
    trace = TraceFile(tmp_path / "trace")
    seen, _ = served(folder, requests, depth=2, trace=trace)
    trace.close()
    replayed = replay(records(tmp_path / "trace"))
    assert not replayed.differs
    assert replayed.num_plans >= max(one.num_events for one in seen.values())
