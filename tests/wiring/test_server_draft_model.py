"""The real server with a draft model: what it answers, and what it reports of its drafts."""

import sys
from pathlib import Path

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from fakes.by_hand import runner_of
from fakes.checkpoints import Shape
from fakes.mixtures import served
from fakes.tiny_tokenizer import byte_fallback
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.wire import EngineRequest, SamplingConfig

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
PROMPT = tuple(range(40, 70))

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")


@pytest.mark.parametrize("vocabulary", ["the same", "another"])
def test_a_draft_model_answers_as_the_model_alone(tmp_path: Path, vocabulary: str) -> None:
    """Drafts are tried as soon as a step without them was measured, however long it took."""
    folder = checkpoints.write(tmp_path / "tiny", Shape(num_layers=3))
    drafter = checkpoints.write(tmp_path / "small", Shape(num_layers=1, seed=3))
    if vocabulary == "another":
        byte_fallback().save(str(drafter / "tokenizer.json"))
    asked = {0.0: 0, 0.9: 7}
    requests = [
        EngineRequest(
            request_id=str(temperature),
            prompt=PROMPT,
            sampling=SamplingConfig(temperature=temperature, seed=seed, max_tokens=80, ignore_eos=True),
        )
        for temperature, seed in asked.items()
    ]
    want = served(runner_of(folder, ops=cpu_ops(), max_sequences=4), requests, depth=1)
    options = ("--device", "cpu", "--dtype", "float32", "--kv-cache-tokens", "4096", "--speculation", str(drafter))
    with api_process(folder, *options, command=REAL) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            for temperature, seed in asked.items():
                answer = client.completions.create(
                    model="tiny",
                    prompt=list(PROMPT),
                    max_tokens=80,
                    temperature=temperature,
                    seed=seed,
                    extra_body={"ignore_eos": True, "return_token_ids": True},
                )
                told = [token for event in want[str(temperature)] for token in event.token_ids]
                assert answer.choices[0].model_extra["token_ids"] == told
        server.until("its drafts are reported", lambda: server.state()["totals"]["drafted_tokens"])
        assert server.state()["speculation"]["drafter"] == "model"
        assert "; of the draft model " in server.output()
