"""lm-eval over completions and chats: texts that are generated, and likelihoods from echoed logprobs."""

import json
import math
import urllib.request
from collections.abc import Callable

import lm_eval
import pytest
from lm_eval.api.task import ConfigurableTask

KINDS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
DOCS = [{"q": "the operator watches", "a": " the services"}, {"q": "a block is", "a": " pinned"}]


@pytest.fixture
def task(tmp_path):
    """A task over two questions from a file."""

    def made(kind: str) -> ConfigurableTask:
        path = tmp_path / "docs.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in DOCS))
        config = {
            "task": kind,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(path)}},
            "test_split": "test",
            "doc_to_text": "{{q}}",
            "doc_to_target": "{{a}}",
        }
        if kind == "generate_until":
            config |= {"output_type": kind, "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8}}
            config["metric_list"] = [{"metric": "exact_match"}]
        elif kind == "multiple_choice":
            config |= {"output_type": kind, "doc_to_choice": [" the services", " pinned"]}
        else:
            config |= {"output_type": kind}
        return ConfigurableTask(config=config)

    return made


def cost(url: str) -> Callable[[dict[str, str]], float]:
    """The sum of the log probabilities of a document's target behind its question."""

    def of(document: dict[str, str]) -> float:
        body = {"prompt": document["q"] + document["a"], "max_tokens": 0, "echo": True, "logprobs": 1}
        head = {"content-type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
        shown = json.load(urllib.request.urlopen(asked))["choices"][0]["logprobs"]
        begin = next(at for at, offset in enumerate(shown["text_offset"]) if offset >= len(document["q"]))
        return sum(shown["token_logprobs"][begin:])

    return of


def evaluate(kind: str, arguments: dict[str, object], tasks: list[ConfigurableTask]) -> dict:
    return lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=tasks,
        apply_chat_template=kind == "local-chat-completions",
        bootstrap_iters=0,
    )


@pytest.mark.parametrize("backend", ["huggingface", "remote"])
def test_completions(backend, task, url, model_folder):
    arguments = {
        "model": "tiny",
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": backend,
        "max_length": 2048,
        **({"tokenizer": str(model_folder)} if backend == "huggingface" else {}),
    }
    found = evaluate("local-completions", arguments, [task(kind) for kind in KINDS])
    assert {kind: found["n-samples"][kind]["effective"] for kind in KINDS} == dict.fromkeys(KINDS, 2)
    # The mean over the documents of what their targets cost, read without lm-eval.
    perplexity = found["results"]["loglikelihood"]["perplexity,none"]
    assert math.log(perplexity) == pytest.approx(-sum(map(cost(url), DOCS)) / 2, rel=1e-4)
    assert found["results"]["loglikelihood_rolling"]["word_perplexity,none"] > 1


def test_chats(task, url):
    arguments = {"model": "tiny", "base_url": f"{url}/v1/chat/completions", "num_concurrent": 2}
    found = evaluate("local-chat-completions", arguments, [task("generate_until")])
    assert len(found["samples"]["generate_until"]) == 2
    assert all(one["resps"][0][0] is not None for one in found["samples"]["generate_until"])
