"""Whether a server that is being measured still computes the model: logprobs from its API against transformers'.

One request scores a prompt and goes on greedily; each token's logprob is compared with what the reference, in float32,
gives the same token after the same ones. So the check sees what the figures were measured with: products of many rows
and of one, attention over the cache, the options that were given. The unit is the error of transformers itself in
bfloat16 on the same tokens, since how much rounding costs depends on the model: ours should be about 1 in bfloat16.
"""

import functools
import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

PROMPT, OUTPUT = 320, 64
ALLOWED: Final = {"bf16": 1.5, "int8": 10.0, "int4": 100.0}
"""By precision, what is still rounding: about twice what was found."""


def deviation(url: str, model: Path, seed: int) -> float:
    """Root mean square of the logprobs' errors, over that of transformers in bfloat16.

    url: of a server with the OpenAI API. Raises RuntimeError when the answer is not what was asked for.
    """
    exact, rounded = _reference(model, torch.float32), _reference(model, torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(3, min(exact.config.vocab_size, 8192), (PROMPT,), generator=generator).tolist()
    body = {"prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "echo": True, "logprobs": 0, "ignore_eos": True}
    choice = _post(url, body | {"model": _model(url), "return_token_ids": True})
    given, ids = torch.tensor(choice["logprobs"]["token_logprobs"][1:]), [*prompt, *choice["token_ids"]]
    if len(ids) != PROMPT + OUTPUT or given.shape != (len(ids) - 1,):
        raise RuntimeError(f"{given.shape[0]} logprobs and {len(ids)} ids for {PROMPT + OUTPUT} tokens")
    wanted = _logprobs(exact, ids)
    return float((given - wanted).norm() / (_logprobs(rounded, ids) - wanted).norm())


@functools.cache
def _reference(model: Path, dtype: torch.dtype) -> PreTrainedModel:
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager")


@torch.inference_mode()
def _logprobs(reference: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """(len(ids) - 1,) of each token but the first, after those before it."""
    logits = reference(torch.tensor([list(ids)]), use_cache=False).logits[0, :-1].float()
    logprobs: Tensor = logits.log_softmax(dim=1).gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0]
    return logprobs


def _model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        choice: dict[str, Any] = json.load(response)["choices"][0]
    return choice
