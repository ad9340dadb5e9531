"""The real server with a model of which kvasir has no family: answers are those of transformers' own `generate`."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai

from fakes import undeclared_checkpoints
from fakes.api_process import api_process
from fakes.tiny_tokenizer import byte_fallback
from fakes.undeclared_checkpoints import VOCAB, is_generated

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
ARGS = ("--device", "cpu", "--dtype", "float32", "--kv-cache-tokens", "1024", "--max-batch-tokens", "48")
LENGTH = 24


def test_answers_of_an_undeclared_model_are_those_of_generate(tmp_path: Path) -> None:
    """In batches, in chunks of prompts that begin alike, with tokens that are drafted from the text."""
    folder = tmp_path / "tiny"
    judge = undeclared_checkpoints.write(folder, "gpt2")
    byte_fallback().save(str(folder / "tokenizer.json"))
    chooser = random.Random(3)
    system = chooser.choices(range(3, VOCAB), k=64)
    prompts = [system + chooser.choices(range(3, VOCAB), k=length) for length in (1, 9, 30, 60)]
    with api_process(folder, *ARGS, "--speculation", "ngram", command=REAL) as server:

        def answered(prompt: list[int]) -> openai.types.Completion:
            with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
                return client.completions.create(
                    model="tiny",
                    prompt=prompt,
                    max_tokens=LENGTH,
                    temperature=0,
                    extra_body={"ignore_eos": True, "return_token_ids": True},
                )

        with ThreadPoolExecutor(len(prompts)) as threads:
            answers = [*threads.map(answered, prompts), answered(prompts[0])]
        for prompt, answer in zip([*prompts, prompts[0]], answers, strict=True):
            assert is_generated(judge, prompt, answer.choices[0].model_extra["token_ids"])
        assert answers[-1].usage.prompt_tokens_details.cached_tokens == 64
        assert "architecture GPT2LMHeadModel is computed by transformers, slowly" in server.output()
        assert "layers of transformers" in server.output()
