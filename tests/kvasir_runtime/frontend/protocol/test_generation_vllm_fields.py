"""Every field that a client of vLLM can send is taken with its meaning, taken without effect, or refused by name.

The names are those of vLLM's ChatCompletionRequest and CompletionRequest (main branch of autumn 2026) and of the fields
that older versions had. None is told that it is unknown.
"""

import json
import re

import pytest

from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol import generation, ignored_fields
from kvasir_runtime.frontend.protocol.validation import ReceivedBody


def named(text):
    return tuple(re.findall(r"\w+", text))


SHARED = named("""
    model frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed stop stream
    stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty
    stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
    add_special_tokens structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
    routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params
    vllm_xargs repetition_detection stream_interval thinking_token_budget include_metrics
""")
OLDER = named("""
    best_of early_stopping guided_json guided_regex guided_choice guided_grammar logits_processors
    guided_decoding_backend guided_whitespace_pattern
""")
OF_CHAT = named("""
    messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning parallel_tool_calls
    add_generation_prompt continue_final_message documents chat_template chat_template_kwargs media_io_kwargs
    mm_processor_kwargs return_prompt_text
""")
OF_COMPLETION = named("prompt suffix prompt_embeds")

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION = {"model": "m", "prompt": "x"}
CASES = [
    *(
        (generation.parse_chat, CHAT, ignored_fields.CHAT, generation.ChatBody, name)
        for name in (*SHARED, *OLDER, *OF_CHAT)
    ),
    *(
        (generation.parse_completion, COMPLETION, ignored_fields.COMPLETION, generation.CompletionBody, n)
        for n in (*SHARED, *OLDER, *OF_COMPLETION)
    ),
]


@pytest.mark.parametrize(
    ("read", "least", "table", "model", "name"), CASES, ids=[f"{case[3].__name__}-{case[4]}" for case in CASES]
)
def test_every_field_of_vllm_has_an_answer(read, least, table, model, name):
    assert name in {*model.model_fields, *table, *ignored_fields.LABELS}
    read(json.dumps(least | ({name: None} if name not in least else {})).encode())  # null requests nothing, everywhere
    if name in ignored_fields.LABELS:
        assert read(json.dumps({**least, name: {"any": 1}}).encode()) == read(json.dumps(least).encode())
    elif name in table and name not in model.model_fields:
        with pytest.raises(Refused) as caught:
            read(ReceivedBody(json.dumps({**least, name: {"any": 1}}).encode(), strict=True))
        assert (caught.value.error.param, caught.value.error.code) == (name, "unsupported_parameter")
        assert ("only" if table[name][1] else "no effect") in caught.value.error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 0),
        ("stream_interval", 1),
        ("thinking_token_budget", -1),
        ("watermarking", False),
        ("vllm_xargs", {}),
        ("kv_transfer_params", {}),
        ("spaces_between_special_tokens", True),
        ("session_id", "a"),
        ("logits_processors", []),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_values_without_effect_change_nothing(chat, name, value):
    read, least = (generation.parse_chat, CHAT) if chat else (generation.parse_completion, COMPLETION)
    assert read(json.dumps({**least, name: value}).encode()) == read(json.dumps(least).encode())
