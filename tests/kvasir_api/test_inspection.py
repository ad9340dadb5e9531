"""What a config tells fits into a pod's last words, and the forecast from it says TooSmall only of what is refused."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fakes.models import LLAMA_8B, QWEN3_30B, facts
from kvasir_api import forecast, inspection, layer_kinds, layouts
from kvasir_api.inspection import ModelFacts, Prediction, predicted
from kvasir_api.options import RuntimeOptions

GIB = 2**30


def judged(memory_gib: float, device: Any = "cuda", of: ModelFacts | None = None, **options: Any) -> Prediction:
    return predicted(of or facts(), RuntimeOptions(**options), device=device, memory_bytes=int(memory_gib * GIB))


def test_facts_survive_the_way_through_a_pods_last_words() -> None:
    document = inspection.encode(facts())
    assert len(document) < inspection.MAX_BYTES / 4
    assert inspection.decode(document.decode()) == facts()


def test_a_newer_runtime_may_say_more() -> None:
    said = msgspec.json.decode(inspection.encode(facts()))
    said["later"], said["shape"]["later"] = 1, 2
    assert inspection.decode(msgspec.json.encode(said).decode()) == facts()


@pytest.mark.parametrize(
    "document",
    ["", "kvasir: no", "{}", '{"schema":1}', '{"architecture":"a","supported":true,"cpu_dtype":"x","shape":{}}'],
)
def test_anything_else_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="not the facts"):
        inspection.decode(document)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schema", 1, "schema 1, expected 10"),
        ("layers", 0, "without layers"),
        ("kv_heads", 0, "kv_heads is 0, expected at least 1"),
        ("state_bytes", -1, "state_bytes is -1, expected at least 0"),
        ("held", {"kept": [["int4", 0]]}, "of which 1 to 64 are possible"),
        ("cpu_held", {"stored": 1e300}, "of which 1 to 64 are possible"),
        ("expert_size", -1, "expert_size is -1, expected at least 0"),
        ("held", {"int8": 0.5}, "of which 1 to 64 are possible"),
        ("attentions", [], "0 attentions for 1 groups"),
        ("group_layers", [], "1 attentions for 0 groups"),
        ("group_layers", [16, 16], "1 attentions for 2 groups"),
        ("group_layers", [0], "32 layers in groups of"),
        ("kinds", [], "0 kinds of layers"),
        ("kinds", [[9], [9]], "2 kinds of layers"),
        ("kinds", [[9, 0, 10]], "layers of LayerKind"),
        ("kinds", [[9, 0, 4, 8, 5]], "layers of LayerKind"),
        ("kinds", [[9, -1]], "layers of LayerKind"),
        ("kinds", [[9, 0, 0, 0, 0, 1]], "32} layers in cache groups of"),
        ("kinds", [[9, 0, 0, 0, 0, 0, True]], "a first layer that reads what one before it reads"),
        ("kinds", [[10**9]], "8030261248 parameters with 32000000000 in its layers"),
        ("layers", 1025, "an absurd number of layers"),
        ("pattern", "0" * 31, "31 layers of kinds"),
        ("pattern", "1" * 32, "32 layers of kinds"),
        ("pattern", "x" * 32, "32 layers of kinds"),
    ],
)
def test_facts_that_make_no_sense_are_refused(field: str, value: Any, message: str) -> None:
    said = msgspec.json.decode(inspection.encode(facts()))
    (said if field in said else said["shape"])[field] = value
    with pytest.raises(ValueError, match=message):
        inspection.decode(msgspec.json.encode(said).decode())


def test_facts_from_before_cache_groups_are_refused() -> None:
    """A Gemma's had two attentions and no layers of each."""
    said = msgspec.json.decode(inspection.encode(facts()))
    said["schema"] = 1
    said["shape"]["attentions"] = [{"kind": "window", "span": 4096}, {}]
    del said["shape"]["group_layers"]
    with pytest.raises(ValueError, match="not the facts"):
        inspection.decode(msgspec.json.encode(said).decode())


def test_facts_that_are_too_long_are_not_cut_but_refused() -> None:
    with pytest.raises(ValueError, match="more than 4096"):
        inspection.encode(facts(architecture="x" * 5000))


@pytest.mark.parametrize(
    ("memory_gib", "options", "verdict", "kv_tokens", "requests"),
    [
        # 80 GiB x 0.9 - 14.96 weights - 0.63 process - 2.63 activations of 8192 tokens = 53.8 GiB of 128 KiB tokens
        (80, {}, "Fits", 440_656, 3),
        (80, {"max_model_len": 8192}, "Fits", 440_656, 53),
        (80, {"memory_percent": 45}, "Fits", 145_664, 1),
        (80, {"max_batch_tokens": 1024}, "Fits", 459_392, 3),
        (24, {}, "Fits", 27_776, 1),  # less than the model's own longest: the runtime lowers that by itself
        (24, {"max_model_len": 131_072}, "TooSmall", 27_776, 0),
        (18, {}, "Fits", 0, 0),  # what a step takes is only estimated, so that the runtime shall measure it
        (16, {}, "TooSmall", 0, 0),
        (16, {"quantization": "int8"}, "Fits", 22_480, 1),
    ],
)
def test_predictions(memory_gib: float, options: dict[str, Any], verdict: str, kv_tokens: int, requests: int) -> None:
    found = judged(memory_gib, **options)
    assert (found.verdict, found.requests) == (verdict, requests)
    assert found.kv_tokens == pytest.approx(kv_tokens, rel=0.01)
    assert " may be used" in found.message


def test_numbers_of_a_refusal_are_those_that_count() -> None:
    assert judged(8).message == (
        "the weights (14.96 GiB) and the KV cache of one request of 16 tokens (2 MiB) take 14.96 GiB;"
        " 7.20 GiB of 8.00 GiB may be used"
    )


GEMMA = LLAMA_8B | {"model_type": "gemma3_text", "sliding_window": 1024, "num_hidden_layers": 12}


def test_facts_of_as_many_kinds_of_layers_as_there_may_be_are_last_words() -> None:
    """The most layers that a config may have, each with other numbers in full, beside a draft model like it in size."""
    whole = forecast.shape(LLAMA_8B | {"num_hidden_layers": 1024})
    layers = [kind._replace(plain=10**8 + layer % 10) for layer, kind in enumerate(whole.layer_kinds)]
    kinds, pattern = layer_kinds.folded(layers)
    assert (len(kinds), pattern[:12]) == (10, "012345678901")
    shape = replace(whole, kinds=kinds, pattern=pattern)
    read = facts(shape=shape, drafter=forecast.shape(QWEN3_30B), draft_model="hf://some/model-of-a-long-name-0.5B")
    found = inspection.RemoteInspection(commit="0" * 40, download_bytes=10**12, facts=read)
    assert inspection.decode_remote(inspection.encode(found).decode()) == found
    assert inspection.decode(inspection.encode(read).decode()).shape.stored_plain == shape.stored_plain


def test_groups_of_an_attention_need_not_be_neighbours() -> None:
    said = msgspec.json.decode(inspection.encode(facts(shape=forecast.shape(GEMMA))))
    sizes = said["shape"]
    assert (sizes["group_layers"], sizes["pattern"]) == ([2] * 6, "000001000001")
    sizes["attentions"].insert(2, sizes["attentions"].pop())
    for kind in sizes["kinds"]:
        kind[5] = 2 if kind[5] else 0
    shape = inspection.decode(msgspec.json.encode(said).decode()).shape
    assert shape.cache_group_of == (0, 0, 1, 1, 3, 2, 3, 4, 4, 5, 5, 2)


def test_layers_with_more_numbers_in_full_than_digits_count_alike() -> None:
    whole = forecast.shape(GEMMA)
    layers = [kind._replace(plain=layer) for layer, kind in enumerate(whole.layer_kinds)]
    kinds, pattern = layer_kinds.folded(layers)
    assert [(kind.group, kind.plain) for kind in kinds] == [(0, 5), (5, 8)]  # (0 + ... + 10) / 10 and (5 + 11) / 2
    assert pattern == "000001000001"
    shape = replace(whole, kinds=kinds, pattern=pattern)
    assert inspection.decode(inspection.encode(facts(shape=shape)).decode()).shape == shape


def of_mixture(memory_gib: float, ranks: int, **options: Any) -> Prediction:
    read = facts(architecture="Qwen3MoeForCausalLM", shape=forecast.shape(QWEN3_30B))
    given = {"dtype": "bfloat16", "data_parallel_size": ranks, "max_model_len": 8192, **options}
    return judged(memory_gib, "cpu", of=read, **given)


@pytest.mark.parametrize(
    ("memory_gib", "ranks", "options", "verdict", "weights_gib", "kv_tokens", "requests"),
    [
        # 80 x 0.9 - 56.87 - 0.34 of the process - 0.07 of 512 tokens = 14.72 GiB
        (80, 1, {}, "Fits", 56.87, 160_750, 19),
        # each has 36 GiB - 27 of experts - 0.58 of table and head - 1.71 - 0.41: 6.30 GiB
        (80, 2, {}, "Fits", 58.58, 2 * 68_780, 2 * 8),
        (80, 2, {"enable_expert_parallel": True}, "Fits", 58.58, 2 * 68_780, 2 * 8),
        # of 128 experts over three ranks one has 43, and takes more than a third
        (80, 3, {}, "Fits", 60.29, 3 * 38_120, 3 * 4),
        (80, 3, {"enable_expert_parallel": True}, "Fits", 60.71, 3 * 36_590, 3 * 4),
        (80, 2, {"kv_cache_tokens": 20_001}, "Fits", 58.58, 20_032, 2),
        # what one process holds, two do not, which have attention twice
        (66, 1, {}, "Fits", 56.87, 23_150, 2),
        (66, 2, {}, "TooSmall", 58.58, 0, 0),
    ],
)
def test_ranks_with_requests_of_their_own_have_a_cache_each(
    memory_gib: float,
    ranks: int,
    options: dict[str, Any],
    verdict: str,
    weights_gib: float,
    kv_tokens: int,
    requests: int,
) -> None:
    found = of_mixture(memory_gib, ranks, **options)
    assert found.weights_bytes / GIB == pytest.approx(weights_gib, abs=0.02)
    assert (found.verdict, found.requests) == (verdict, requests)
    assert found.kv_tokens == pytest.approx(kv_tokens, rel=0.002)
    assert found.message.startswith(f"at each of {ranks} ranks ") == (ranks > 1)


def test_ranks_of_a_model_without_experts_are_not_forecast() -> None:
    found = judged(64, "cpu", data_parallel_size=2)
    assert found.verdict == "Unknown"
    said = "--data-parallel-size 2 is not possible: the model has no experts that ranks could share"
    assert found.message.startswith(said)


@pytest.mark.parametrize(
    ("ranks", "whole", "message"),
    [
        (
            7,
            False,
            "--data-parallel-size 7 is not possible: 768 numbers of each expert cannot be divided among 7 ranks",
        ),
        (7, True, ""),
    ],
)
def test_experts_that_a_start_does_not_divide_are_not_forecast(ranks: int, whole: bool, message: str) -> None:
    found = of_mixture(200, ranks, enable_expert_parallel=whole)
    assert (found.verdict, found.message == message) == (("Unknown", True) if message else ("Fits", False))


def test_fewer_whole_experts_than_ranks_are_not_forecast() -> None:
    few = facts(architecture="Qwen3MoeForCausalLM", shape=forecast.shape(QWEN3_30B | {"num_experts": 6}))
    found = judged(200, "cpu", of=few, dtype="bfloat16", data_parallel_size=8, enable_expert_parallel=True)
    assert (found.verdict, found.message) == (
        "Unknown",
        "--data-parallel-size 8 with --enable-expert-parallel is not possible: 6 experts are fewer than 8 ranks",
    )


def test_what_is_left_in_full_is_divided_with_the_experts_that_it_is_of() -> None:
    """Half of the experts in full, and a fifth of the rest of the matrices."""
    shape = forecast.shape(QWEN3_30B | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})
    (kind,) = shape.kinds
    plain, routed = kind.routed // 2 + (kind.matrices - kind.routed) // 5, kind.routed // 2
    left = replace(shape, kinds=(kind._replace(plain=plain, plain_routed=routed),))
    for whole in (False, True):
        part = layouts.of_data_rank(left, 4, whole_experts=whole)
        assert part.stored_plain == 48 * (plain - routed + routed // 4)
        more = part.weights_bytes("bfloat16") - layouts.of_data_rank(shape, 4, whole_experts=whole).weights_bytes(
            "bfloat16"
        )
        assert more == pytest.approx(part.stored_plain * (32 - shape.held.stored) / 16, rel=1e-9)


def test_what_ranks_hold_each_keeps_its_bits() -> None:
    """Experts in 4 bits beside attention in 16: one of two ranks has fewer numbers, more bytes for each."""
    few = QWEN3_30B | {"num_experts": 16, "quantization_config": {"quant_method": "mxfp4"}}
    shape = forecast.shape(few)
    half = forecast.shape(few | {"num_experts": 8, "vocab_size": 75_968})
    for whole_experts in (False, True):
        part = layouts.of_data_rank(shape, 2, whole_experts=whole_experts)
        assert (shape.held.stored, part.held.stored) == (14, 17)
        assert part.weights_bytes("bfloat16") == pytest.approx(half.weights_bytes("bfloat16"), rel=0.001)


def test_a_cache_of_a_fixed_size_is_that_size() -> None:
    found = judged(24, kv_cache_tokens=1000, block_size=32)
    assert (found.verdict, found.kv_tokens, found.requests) == ("Fits", 1024, 1)
    refused = judged(24, kv_cache_tokens=100_000)
    assert refused.verdict == "TooSmall"
    assert refused.message == (
        "the weights (14.96 GiB) and a KV cache of 100,000 tokens (12.21 GiB) take 27.16 GiB; there are 24.00 GiB"
    )


def test_a_draft_model_takes_memory_where_it_drafts() -> None:
    """A model with a quarter of the layers beside it, in float32, and its keys and values of each token."""
    small = forecast.shape({**LLAMA_8B, "num_hidden_layers": 8})
    name = "/model/small"
    read = facts(draft_model=name, drafter=small)
    assert inspection.decode(inspection.encode(read).decode()) == read
    assert len(inspection.encode(read)) < inspection.MAX_BYTES / 2
    alone, beside = (judged(64, "cpu", of=read, speculation=value) for value in ("off", name))
    left = alone.kv_tokens * 256 * 1024
    want = (left - small.weights_bytes("float32")) / (320 * 1024)
    assert beside.kv_tokens == pytest.approx(want, rel=0.01)
    assert "the draft model" in beside.message
    assert judged(40, "cpu", of=read).verdict == "Fits"
    refused = judged(40, "cpu", of=read, speculation=name)
    assert refused.verdict == "TooSmall"
    assert "the weights (29.92 GiB), the draft model (" in refused.message
    fixed = judged(40, "cpu", of=read, speculation=name, kv_cache_tokens=1024)
    assert (fixed.verdict, judged(40, "cpu", of=read, kv_cache_tokens=1024).verdict) == ("TooSmall", "Fits")
    # None drafts on a card, of another the sizes say nothing, and one whose config could not be read counts as nothing.
    assert judged(24, of=read, speculation=name) == judged(24, of=read)
    assert judged(64, "cpu", of=read, speculation="/model/other") == alone
    assert judged(64, "cpu", of=facts(draft_model=name), speculation=name) == alone


@pytest.mark.parametrize("way", ["mtp", "auto"])
def test_a_layer_that_drafts_takes_memory_where_it_is_used(way: str) -> None:
    own = replace(facts().shape, layers=1, parameters=facts().shape.parameters // 8)
    read = facts(own_drafter=own)
    assert judged(64, "cpu", of=read, speculation=way).kv_tokens < judged(64, "cpu", of=read).kv_tokens
    assert judged(64, "cpu", of=read, speculation="suffix") == judged(64, "cpu", of=read)
    assert judged(64, "cpu", of=facts(), speculation=way) == judged(64, "cpu", of=facts())
    two = judged(64, "cpu", of=read, speculation=way, tensor_parallel_size=2)
    assert (two == judged(64, "cpu", of=read, tensor_parallel_size=2)) is (way == "auto")


def test_a_draft_model_that_makes_no_sense_is_refused() -> None:
    said = msgspec.json.decode(inspection.encode(facts(draft_model="/d", drafter=facts().shape)))
    said["drafter"]["layers"] = 0
    with pytest.raises(ValueError, match="without layers"):
        inspection.decode(msgspec.json.encode(said).decode())


def test_each_rank_is_a_process() -> None:
    one, two = (judged(64, "cpu", tensor_parallel_size=ranks) for ranks in (1, 2))
    assert 0 < one.kv_tokens - two.kv_tokens <= one.kv_tokens // 10


def test_a_processor_computes_in_the_type_that_it_is_good_at() -> None:
    assert judged(64, "cpu").weights_bytes == 2 * judged(64, "cuda").weights_bytes
    assert judged(64, "cpu", dtype="bfloat16").weights_bytes == judged(64, "cuda").weights_bytes
    assert judged(64, "cpu", kv_cache_dtype="int8").kv_tokens > 3 * judged(64, "cpu").kv_tokens


def test_a_card_computes_a_model_in_32_bits_in_16() -> None:
    wide = facts(shape=forecast.shape({**LLAMA_8B, "torch_dtype": "float32"}))
    assert judged(24, of=wide) == judged(24)
    assert judged(24, of=wide, dtype="float32").verdict == "TooSmall"


def test_what_is_not_served_is_unknown() -> None:
    found = judged(8, of=facts(supported=False))
    assert (found.verdict, found.message) == ("Unknown", "architecture LlamaForCausalLM is not known")


def test_a_cache_of_4_bits_is_refused_where_it_cannot_be() -> None:
    assert (
        judged(64, "cuda", kv_cache_dtype="int4").kv_tokens > 1.9 * judged(64, "cuda", kv_cache_dtype="int8").kv_tokens
    )
    latent = msgspec.structs.replace(facts(), shape=replace(facts().shape, latent_row=576))
    found = judged(64, "cuda", of=latent, kv_cache_dtype="int4")
    assert found.verdict == "Unknown"
    assert found.message.endswith("this model caches compressed rows; take int8")


@pytest.mark.parametrize(
    ("memory_gib", "options", "want"),
    [
        (24, {}, ("Fits", 256 * 512, 256)),
        (24, {"max_sequences": 8, "max_model_len": 128}, ("Fits", 8 * 128, 8)),
        (24, {"kv_cache_tokens": 1 << 20}, ("Fits", 256 * 512, 256)),
        (0.1, {}, ("TooSmall", 0, 0)),
    ],
)
def test_an_encoder_takes_as_many_texts_as_may_run(memory_gib: float, options: dict[str, int], want: Any) -> None:
    bert = {
        "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "vocab_size": 30522, "type_vocab_size": 2, "architectures": ["BertModel"],
    }  # fmt: skip
    held = judged(memory_gib, of=facts(shape=forecast.shape(bert)), **options)
    assert (held.verdict, held.kv_tokens, held.requests) == want
