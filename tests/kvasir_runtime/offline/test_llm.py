"""The offline API over real engine processes: the demo's model for what is said, a fake runner for load and faults."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import kvasir_runtime
from fakes import checkpoints, ggufs
from fakes.api_process import HERE
from kvasir_runtime import LLM, BeamSearchParams, EngineError, PromptError, SamplingParams
from kvasir_runtime.frontend.parsing.parts import Content, Reasoning
from kvasir_runtime.offline.llm import _settings
from kvasir_runtime.offline.outputs import Output

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "operator/kvasir_local/demo/model"
FAKE = (sys.executable, "-m", "fakes.engine_process")
GREEDY = SamplingParams(temperature=0, max_tokens=24)
QUESTION = [{"role": "user", "content": "What is Kvasir?"}]

pytestmark = pytest.mark.xdist_group("offline")  # its engine processes are shared by the tests of this file


@pytest.fixture(scope="module")
def llm():
    with LLM(str(MODEL), kv_cache_tokens=16384, device="cpu", dtype="float32") as made:
        yield made


@pytest.fixture(scope="module")
def path():
    """The fake engine's module is found by its process, which inherits the environment."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(HERE.parent)
    yield
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


@pytest.fixture
def endless(tmp_path, path):
    folder = checkpoints.write(tmp_path / "endless")
    with LLM(str(folder), kv_cache_tokens=65536, max_model_len=60000, engine_command=FAKE) as made:
        yield made


def test_many_prompts_are_answered_in_their_order_and_a_single_one_alike(llm):
    prompts = [f"The word {number} and" for number in range(12)]
    outputs = llm.generate(prompts, GREEDY)
    assert [len(output.outputs) for output in outputs] == [1] * 12
    assert all(
        isinstance(output, Output) and output.outputs[0].finish_reason in {"stop", "length"} for output in outputs
    )
    alone = llm.generate(prompts[7], GREEDY)
    assert [output.text for output in alone] == [outputs[7].text]
    ids = outputs[7].prompt_token_ids
    assert llm.generate(ids, GREEDY)[0].text == llm.generate([list(ids)], GREEDY)[0].text == outputs[7].text
    assert llm.generate(ids, GREEDY)[0].prompt_token_ids == ids


def test_a_chat_speaks(llm):
    params = SamplingParams(temperature=0, max_tokens=60)
    (answer,) = llm.chat(QUESTION, params)
    assert len(answer.text.split()) > 3
    both = llm.chat([QUESTION, QUESTION], params)
    assert [output.text for output in both] == [answer.text] * 2
    assert both[1].cached_tokens >= 0
    assert "".join(llm.stream(QUESTION, params, chat=True)) == answer.text


def test_params_reach_the_engine(llm):
    prompt = "Once"
    drawn = SamplingParams(temperature=1, seed=3, max_tokens=16, ignore_eos=True, n=3)
    first, again = (llm.generate(prompt, drawn)[0].outputs for _ in range(2))
    assert [choice.token_ids for choice in first] == [choice.token_ids for choice in again]
    assert len({choice.token_ids for choice in first}) == 3
    assert {len(choice.token_ids) for choice in first} == {16}
    text = first[0].text
    one = {"temperature": 1, "seed": 3, "max_tokens": 16, "ignore_eos": True}
    cut = llm.generate(prompt, SamplingParams(**one, stop=[text[4:7]]))[0].outputs[0]
    assert (cut.text, cut.finish_reason) == (text[: text.index(text[4:7])], "stop")
    assert len(cut.token_ids) < 16
    assert len(llm.generate(prompt)[0].outputs[0].token_ids) <= 16, "the default is OpenAI's"


def test_logprobs_are_told_in_the_shape_of_vllm(llm):
    asked = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("Once upon", asked)
    (choice,) = output.outputs
    assert len(choice.logprobs) == len(choice.token_ids) == 6
    for token, told in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(told)) == token
        assert (told[token].rank, len(told)) == (1, 2)
        assert told[token].logprob == max(one.logprob for one in told.values())
    assert "".join(told[token].decoded_token for token, told in zip(choice.token_ids, choice.logprobs, strict=True))
    assert choice.cumulative_logprob == pytest.approx(
        sum(told[token].logprob for token, told in zip(choice.token_ids, choice.logprobs, strict=True))
    )
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for token, told in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert told[token].rank >= 1
    (plain,) = llm.generate("Once upon", GREEDY)
    assert (plain.prompt_logprobs, plain.outputs[0].logprobs, plain.outputs[0].cumulative_logprob) == (None,) * 3
    (chat,) = llm.chat(QUESTION, asked)
    assert len(chat.outputs[0].logprobs) == 6
    assert len(chat.prompt_logprobs) == len(chat.prompt_token_ids)


def test_a_beam_search_gives_the_likeliest_answers(llm):
    found = llm.beam_search(["Once", "Why"], BeamSearchParams(beam_width=4, max_tokens=8, logprobs=0))
    for output in found:
        assert [choice.index for choice in output.outputs] == [0, 1, 2, 3]
        scores = [choice.score for choice in output.outputs]
        assert scores == sorted(scores, reverse=True)
        assert len({choice.token_ids for choice in output.outputs}) == 4
    (greedy,) = llm.generate("Once", SamplingParams(temperature=0, max_tokens=8, logprobs=0, ignore_eos=True))
    (wide,) = llm.beam_search("Once", BeamSearchParams(beam_width=4, max_tokens=8, logprobs=0, ignore_eos=True))
    assert wide.outputs[0].cumulative_logprob >= greedy.outputs[0].cumulative_logprob
    assert wide.outputs[0].score == pytest.approx(wide.outputs[0].cumulative_logprob / 8)
    same = SamplingParams(use_beam_search=True, n=2, best_of=4, max_tokens=8, ignore_eos=True)
    shown = llm.generate("Once", same)[0].outputs
    assert [choice.token_ids for choice in shown] == [choice.token_ids for choice in wide.outputs[:2]]


def test_the_best_of_many_draws_is_given(llm):
    asked = {"temperature": 1.5, "seed": 5, "max_tokens": 8, "ignore_eos": True}
    many = llm.generate("Once", SamplingParams(n=6, logprobs=0, **asked))[0].outputs
    best = llm.generate("Once", SamplingParams(n=2, best_of=6, **asked))[0].outputs
    order = sorted(many, key=lambda choice: -choice.cumulative_logprob)
    assert [choice.token_ids for choice in best] == [choice.token_ids for choice in order[:2]]
    assert [choice.index for choice in best] == [0, 1]


def test_prompts_may_be_written_as_in_vllm_and_biases_reach_the_engine(llm):
    text = llm.generate("Once", GREEDY)[0]
    assert llm.generate({"prompt": "Once"}, GREEDY)[0].text == text.text
    assert llm.generate([{"prompt_token_ids": text.prompt_token_ids}], GREEDY)[0].text == text.text
    with pytest.raises(ValueError, match="multi_modal_data"):
        llm.generate({"prompt": "x", "multi_modal_data": {}})
    biased = SamplingParams(temperature=0, max_tokens=4, logit_bias={"77": 100})
    assert llm.generate("Once", biased)[0].outputs[0].token_ids == (77,) * 4


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        (["fine", ""], GREEDY, "prompt 1: The prompt is empty"),
        ([[1, 999_999]], GREEDY, "prompt 0: Token id 999999 is out of range"),
        ("x", SamplingParams(max_tokens=5000), "maximum context length is 2048"),
    ],
)
def test_a_wrong_prompt_is_named_before_anything_is_computed(llm, prompts, params, words):
    with pytest.raises(PromptError, match=words):
        llm.generate(prompts, params)


def test_wrong_calls_say_what_is_right(llm):
    with pytest.raises(ValueError, match="max_tokens"):
        SamplingParams(max_tokens=0)
    with pytest.raises(ValueError, match="temprature"):
        SamplingParams(temprature=0)
    with pytest.raises(PromptError, match=r"messages\[0\].role"):
        llm.chat([{"role": "no role", "content": "x"}])
    with pytest.raises(ValueError, match="n must be 1"):
        llm.stream("x", SamplingParams(n=2))
    with pytest.raises(ValueError, match="no option api_key"):
        LLM("x", api_key="k")
    with pytest.raises(ValueError, match=r"blockSize|block_size"):
        LLM("x", block_size=5)
    assert llm.generate([]) == []


def test_the_checkpoints_defaults_hold_for_what_params_do_not_set(tmp_path, path):
    folder = checkpoints.write(tmp_path / "endless")
    config = {"max_new_tokens": 3, "temperature": 0.5, "top_k": 1, "eos_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(config))
    with LLM(str(folder), kv_cache_tokens=4096, engine_command=FAKE) as made:
        assert made.get_default_sampling_params() == SamplingParams(max_tokens=3, temperature=0.5, top_k=1)
        lengths = [len(made.chat(QUESTION, p)[0].outputs[0].token_ids) for p in (None, SamplingParams(max_tokens=5))]
    assert lengths == [3, 5]
    with LLM(str(folder), kv_cache_tokens=4096, engine_command=FAKE, generation_config="none") as made:
        assert made.get_default_sampling_params() == SamplingParams()


def test_leaving_a_stream_early_frees_its_place(endless):
    stream = endless.stream([1, 2, 3], SamplingParams(max_tokens=50_000, ignore_eos=True))
    assert next(stream)
    stream.close()
    started = time.monotonic()
    assert endless.generate([[4, 5]], SamplingParams(max_tokens=3))[0].outputs[0].token_ids
    assert endless._llm._client.num_inflight == 0
    assert time.monotonic() - started < 60


def test_a_killed_engine_is_an_error_not_a_silence(endless):
    pid = endless._llm._engine.pid
    threading.Timer(0.05, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(EngineError, match="SIGKILL"):
        endless.generate([[1, 2]] * 3, SamplingParams(max_tokens=50_000, ignore_eos=True))
    with pytest.raises(EngineError, match="SIGKILL"):
        endless.generate([[1, 2]])


def test_a_model_that_cannot_be_served_is_one_line_and_leaves_nothing(tmp_path, path, monkeypatch):
    own = Path(tempfile.mkdtemp(prefix="k"))  # short, as names of sockets must be
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    with pytest.raises(EngineError, match=r"^model directory \./nowhere does not exist$"):
        LLM("./nowhere")
    broken = checkpoints.write(tmp_path / "broken")
    with pytest.raises(EngineError, match=r"^model broken: config.json is missing$"):
        LLM(str(broken), engine_command=FAKE)
    own.rmdir()  # an error if anything is left in it


def test_a_closed_model_says_so(tmp_path, path):
    made = LLM(str(checkpoints.write(tmp_path / "tiny")), engine_command=FAKE)
    made.close()
    made.close()
    with pytest.raises(EngineError, match="closed"):
        made.generate("x")


def test_a_bar_is_shown_on_request(tmp_path, path, capsys):
    with LLM(str(checkpoints.write(tmp_path / "tiny")), engine_command=FAKE, progress=True) as made:
        made.generate([[1, 2]] * 3, GREEDY)
    shown = capsys.readouterr()
    assert "3/3" in shown.err
    assert shown.out == ""


def test_the_package_is_light_until_something_is_asked_of_it():
    program = (
        "import sys, kvasir_runtime; light = set(sys.modules); kvasir_runtime.LLM, kvasir_runtime.SamplingParams;"
        "print('pydantic' in light, 'torch' in sys.modules, 'fastapi' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("crds", "runtime"))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
    with pytest.raises(AttributeError, match="nothing"):
        _ = kvasir_runtime.nothing


def test_gguf_file_answers_as_the_checkpoint_that_it_was_made_from(llm, tmp_path):
    path = ggufs.write(MODEL, tmp_path / "demo.gguf", kind="BF16")
    with LLM(str(path), kv_cache_tokens=16384, device="cpu", dtype="float32") as made:
        assert made.chat(QUESTION, GREEDY)[0].text == llm.chat(QUESTION, GREEDY)[0].text


def test_thoughts_are_told_apart_where_their_format_is_known():
    with LLM(str(MODEL), kv_cache_tokens=4096, device="cpu", reasoning_parser="deepseek_r1") as thinking:
        parts = list(thinking.stream_parts(QUESTION, GREEDY))
        assert parts
        assert all(isinstance(part, Reasoning) for part in parts), "it begins within thoughts and never ends them"
        assert "".join(part.text for part in parts).strip() == thinking.chat(QUESTION, GREEDY)[0].text.strip()


def test_without_a_format_all_is_content(llm):
    parts = list(llm.stream_parts(QUESTION, GREEDY))
    assert all(isinstance(part, Content) for part in parts)
    assert "".join(part.text for part in parts) == llm.chat(QUESTION, GREEDY)[0].text


def test_embeddings_come_in_the_order_of_prompts(llm):
    texts = ["The operator watches", "a block of the cache", "one step"] * 20
    outputs = llm.embed(texts)
    assert [len(output.outputs.embedding) for output in outputs] == [192] * 60
    ids = llm.generate(texts[1], GREEDY)[0].prompt_token_ids
    assert outputs[1].prompt_token_ids == ids
    (alone,) = llm.embed(list(ids))
    assert alone.outputs.embedding == pytest.approx(outputs[1].outputs.embedding, abs=1e-4)
    assert sum(number * number for number in alone.outputs.embedding) == pytest.approx(1, abs=1e-4)
    assert llm.embed([]) == []
    with pytest.raises(PromptError, match="2048"):
        llm.embed("word " * 5000)


def test_a_program_for_vllm_runs():
    options = {
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "gpu_memory_utilization": 0.5,
        "enable_prefix_caching": True,
    }
    with LLM(model=str(MODEL), enforce_eager=True, max_num_seqs=8, dtype="float", seed=3, **options) as made:
        prompts = ["Hello, my name is", "The capital of France is"]
        sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=8)
        outputs = made.generate(prompts, sampling_params, use_tqdm=False)
        assert [output.prompt for output in outputs] == prompts
        assert all(output.finished and output.request_id for output in outputs)
        each = [SamplingParams(temperature=0, max_tokens=number + 1) for number in range(2)]
        lengths = [len(output.outputs[0].token_ids) for output in made.generate(prompts, sampling_params=each)]
        assert lengths == [1, 2]
        (ids,) = made.generate([{"prompt_token_ids": [5, 6]}], sampling_params)
        assert ids.prompt is None
        (chat,) = made.chat(QUESTION, sampling_params, chat_template_kwargs={})
        assert "What is Kvasir?" in chat.prompt
        with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
            made.generate("x", each)


def test_a_call_waits_as_long_as_its_prompts_take_unless_told_otherwise():
    assert (_settings("m", {}).max_waiting_seconds, _settings("m", {}).max_waiting_tokens) == (0, 0)
    assert _settings("m", {"max_waiting_seconds": 5}).max_waiting_seconds == 5


def test_a_seed_of_the_class_repeats_what_was_drawn():
    texts = []
    for _ in range(2):
        with LLM(str(MODEL), kv_cache_tokens=4096, device="cpu", dtype="float32", seed=7) as made:
            texts.append([one.text for one in made.generate(["A", "A"], SamplingParams(max_tokens=12))])
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def test_chatml_fine_tunes_end_their_answers(tmp_path):
    """A bias makes the model write <|im_end|>, which config.json does not name."""
    folder = checkpoints.write(tmp_path / "tiny")
    end = checkpoints.SPECIAL_TOKENS.index("<|im_end|>")
    params = SamplingParams(temperature=0, max_tokens=4, logit_bias={str(end): 100})

    def reasons():
        with LLM(str(folder), kv_cache_tokens=512, device="cpu") as made:
            chat, text = made.chat(QUESTION, params), made.generate("The engine", params)
            return [found[0].outputs[0].finish_reason for found in (chat, text)]

    assert reasons() == ["stop", "length"], "the chat template ends a message with it"
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": "<|im_end|>"}))
    assert reasons() == ["stop", "stop"], "the tokenizer names it"


def test_a_longer_context_by_a_model_card_and_a_template_by_option(tmp_path):
    folder = checkpoints.write(tmp_path / "tiny", checkpoints.Shape(max_position_embeddings=64))
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    options = {"kv_cache_tokens": 1024, "device": "cpu", "chat_template": "{{ messages[0].content }} so:"}
    with LLM(str(folder), hf_overrides={"rope_scaling": yarn}, **options) as made:
        assert made.facts.max_model_len == 256
        (output,) = made.generate([list(range(3, 203))], SamplingParams(max_tokens=8, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 8
        (chat,) = made.chat(QUESTION, SamplingParams(max_tokens=1))
        assert chat.prompt == "What is Kvasir? so:"
    with pytest.raises(EngineError, match=r"max_model_len 128 is more than the model's 64 positions.*--hf-overrides"):
        LLM(str(folder), max_model_len=128, **options)
