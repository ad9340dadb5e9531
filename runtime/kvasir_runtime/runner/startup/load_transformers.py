"""Loads a model that transformers computes: of an architecture that no family declares, or where the options say so.

Called by `load_model`. The library is an optional extra. Of a checkpoint only config.json and safetensors are read:
code of its own is never run, nothing is pickled. Raises StartError with one line for what cannot be served so.
"""

import copy
import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from kvasir_api import hf_config
from kvasir_api.options import ServeOptions
from kvasir_runtime import arriving, gguf
from kvasir_runtime.errors import CapacityError, DeviceMemoryError, ModelError, StartError
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers import transformers_decoder
from kvasir_runtime.layers.transformers_decoder import TransformersDecoder
from kvasir_runtime.models import registry, transformers_spec
from kvasir_runtime.models.config import ModelConfig, read_document, read_written
from kvasir_runtime.runner.startup import capacity, transformers_check
from kvasir_runtime.weights import safetensors_checkpoint

LOG = logging.getLogger(__name__)
EXTRA: Final = "pip install 'kvasir-serving[transformers]'"
_PLAIN: Final = "eager"
"""The attention that transformers itself compares with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersModel:
    """A model on its device that was compared with itself. max_model_len: its longest sequence, in tokens.

    config: of it what a model of ours has too.
    """

    config: ModelConfig
    decoder: TransformersDecoder
    max_model_len: int
    weights_bytes: int


def is_installed() -> bool:
    """Whether the extra is there."""
    return importlib.util.find_spec("transformers") is not None


def is_chosen(options: ServeOptions, folder: Path) -> bool:
    """Whether a model is computed by transformers: by the option, or for want of a family. One whose family refuses
    the config is not: transformers ignores fields that it does not know. Raises StartError for a GGUF file, which
    transformers would decode whole, and ModelError for one that cannot be read.
    """
    if options.model_impl == "transformers" and gguf.is_gguf(folder):
        raise StartError("--model-impl transformers does not read GGUF files: leave the option out")
    if options.model_impl != "auto" or gguf.is_gguf(folder) or not is_installed():
        return options.model_impl == "transformers"
    named = registry.named_in(read_document(folder, options.hf_overrides))
    return bool(named) and registry.declared(named) is None


def load(
    options: ServeOptions,
    folder: Path,
    document: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    ops: Ops,
    check_memory: Callable[[int], None],
) -> TransformersModel:
    """document: as `read_document` gives it. check_memory: raises where so many bytes of weights do not fit; called
    before any are read.
    """
    named = registry.named_in(document) or ("without a name",)
    refuse_options(options, folder, named)
    arriving.confirm(folder)  # the library opens files by itself
    if not is_installed():
        raise StartError(f"--model-impl transformers needs the library of that name: {EXTRA}")
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    why = "kvasir has no family for it" if registry.declared(named) is None else "--model-impl says so"
    LOG.warning("architecture %s is computed by transformers, slowly: %s", ", ".join(named), why)
    try:
        num_tensors, num_numbers = safetensors_checkpoint.totals(folder)
        _check_layers(document.get("num_hidden_layers"), num_tensors)
        config = _config(transformers, _document(folder, options.hf_overrides))
        kind, text = _model_class(transformers, config), config.get_text_config(decoder=True)
        limits = hf_config.sequence_limits(_positions(text))
        usual = capacity.sequence_limit(options.max_model_len, limits)
        limit = transformers_spec.longest_sequence(text, options.max_model_len, usual)
        weights_bytes = num_numbers * dtype.itemsize
        check_memory(max(weights_bytes, _described_bytes(kind, config, dtype)))
        decoder = _compared(transformers, _loaded(kind, config, folder, dtype, device), text, ops)
    except (CapacityError, DeviceMemoryError):
        raise
    except Exception as error:
        if "out of memory" in str(error):
            raise
        told = str(error) if isinstance(error, StartError) else f"{type(error).__name__}: {error}"
        refused = f"{folder} cannot be served through transformers: {' '.join(told.split())}"
        refusal = registry.refusal(folder, options.hf_overrides)
        raise ModelError(f"{refused}; {refusal}" if refusal else refused) from error
    own = transformers_spec.model_config(decoder.spec, named, document)
    return TransformersModel(config=own, decoder=decoder, max_model_len=limit, weights_bytes=weights_bytes)


def refuse_options(options: ServeOptions, folder: Path, architectures: Sequence[str]) -> None:
    """Raises StartError for an option that cannot be followed."""
    if named := _not_followed(options):
        raise StartError(
            f"{' and '.join(named)} cannot be used where transformers computes {folder} (--model-impl, architecture"
            f" {', '.join(architectures)}): leave the option out"
        )


def _not_followed(options: ServeOptions) -> list[str]:
    """Options given that this way of computing has no answer to."""
    refused = {
        "--tensor-parallel-size": options.tensor_parallel_size > 1,
        "--pipeline-parallel-size": options.pipeline_parallel_size > 1,
        "--data-parallel-size": options.data_parallel_size > 1,
        "--enable-expert-parallel": options.enable_expert_parallel,
        "--quantization": options.quantization not in ("auto", "none"),
        "--weights-host-bytes": options.weights_host_bytes > 0,
        "--batch-invariant": options.batch_invariant,
    }
    return [name for name, given in refused.items() if given]


def _document(folder: Path, overrides: str) -> dict[str, Any]:
    """config.json, as it is but for the overrides. Raises ModelError, or ValueError."""
    document, given = read_written(folder), hf_config.parsed_overrides(overrides)
    nested = document.get(hf_config.TEXT)
    text = {hf_config.TEXT: nested | given} if isinstance(nested, dict) else {}
    return document | given | text


def _config(transformers: Any, document: dict[str, Any]) -> Any:
    """By a class of the library alone: what a checkpoint names of its own (auto_map) is not looked at."""
    known, family = transformers.CONFIG_MAPPING, str(document.get("model_type"))
    if family not in known:
        raise ModelError(
            f"transformers {transformers.__version__} has no model_type {family}; code of a checkpoint is never run"
        )
    if document.get("quantization_config") is not None:
        raise ModelError("quantized weights (quantization_config) are not read; take the full ones")
    return known[family].from_dict(document)


def _model_class(transformers: Any, config: Any) -> Any:
    """The class that generates, of what config.json names. Raises ModelError for others."""
    if config.is_encoder_decoder:
        raise ModelError("it has an encoder and a decoder; of these two one cache holds one")
    causal = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if causal is None:
        raise ModelError(f"transformers has nothing of model_type {config.model_type} that generates text from text")
    named = [name for name in config.architectures or () if hasattr(transformers, name)]
    if named and causal.__name__ not in named:
        generates = f"of model_type {config.model_type} {causal.__name__} generates text"
        raise ModelError(f"config.json names {', '.join(named)}, and {generates}")
    if getattr(causal, "_is_stateful", False):
        raise ModelError("it has layers with a recurrent state, which blocks of the cache do not hold")
    return causal


def _positions(text: Any) -> dict[str, Any]:
    """What `hf_config.sequence_limits` reads; the rotary embedding where it is one for all layers."""
    rope, positions = getattr(text, "rope_parameters", None), getattr(text, "max_position_embeddings", None)
    found: dict[str, Any] = {} if positions is None else {"max_position_embeddings": positions}
    return found | ({"rope_parameters": rope} if isinstance(rope, dict) and rope.get("rope_type") else {})


def _check_layers(layers: object, num_tensors: int) -> None:
    """Raises ModelError for a config of so many layers that the library alone would take long to count them."""
    if isinstance(layers, int) and layers > num_tensors:
        raise ModelError(f"config.json has {layers:,} layers, more than the checkpoint's {num_tensors:,} tensors")


def _described_bytes(kind: Any, config: Any, dtype: torch.dtype) -> int:
    """Of all tensors of the model of a config, which the library makes whatever the checkpoint has of them."""
    plain = copy.deepcopy(config)
    plain._attn_implementation = _PLAIN  # noqa: SLF001 -- as from_pretrained does with its argument
    with torch.device("meta"):
        model = kind(plain)
    tensors = (*model.parameters(), *model.buffers())
    return sum(one.numel() * (dtype if one.is_floating_point() else one.dtype).itemsize for one in tensors)


def _loaded(kind: Any, config: Any, folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The model with its weights. Raises ModelError for one of which the checkpoint lacks tensors."""
    model, found = kind.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=_PLAIN,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # else what is wrong is in a log alone
    )
    if lacking := sorted((*found["missing_keys"], *found["mismatched_keys"]), key=str):
        raise ModelError(f"tensor {lacking[0]} is missing, or of another shape ({len(lacking)} of such)")
    return model.to(device).eval().requires_grad_(requires_grad=False)


@torch.inference_mode()
def _compared(transformers: Any, model: Any, text: Any, ops: Ops) -> TransformersDecoder:
    """A decoder that computes what the model does. Raises ModelError where it does not."""
    if hasattr(text, "output_router_logits"):
        text.output_router_logits = False
    device = next(model.parameters()).device
    texts = transformers_check.texts_of(text.vocab_size, device)
    reference = [transformers_check.alone(model, one) for one in texts]
    for module in model.modules():
        if hasattr(module, transformers_spec.TEMPERATURE):  # no sequence is so long that it changes scores
            setattr(module, transformers_spec.TEMPERATURE, False)
    transformers_decoder.registered(transformers.AttentionInterface)
    model.set_attn_implementation(transformers_decoder.ATTENTION)
    observed = transformers_decoder.observed(model, text.num_hidden_layers)
    decoder = TransformersDecoder(transformers_spec.decoder_spec(text, observed), ops, model)
    transformers_check.check(decoder, reference, texts)
    return decoder
