"""Loads a head that drafts from the model's hidden states, its own checkpoint or the model's. Called by `build`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kvasir_api.options import ServeOptions
from kvasir_api.speculation import reads_own_layer
from kvasir_runtime import gguf
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import ModelError, StartError
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.draft_head import DraftHead
from kvasir_runtime.layers.draft_head_spec import DraftHeadSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models import draft_heads
from kvasir_runtime.models.config import ModelConfig, read_config
from kvasir_runtime.models.family import Place
from kvasir_runtime.models.registry import declared
from kvasir_runtime.runner import drafts
from kvasir_runtime.runner.draft_head import HeadDrafter
from kvasir_runtime.runner.draft_model import whole_group
from kvasir_runtime.runner.startup import placement
from kvasir_runtime.runner.startup.load_model import LoadedModel, check_memory, loading_progress
from kvasir_runtime.weights import loader, quant_formats, safetensors_checkpoint
from kvasir_runtime.wire import EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedHead:
    """A head whose weights are on the device; the fields are those of `LoadedModel`."""

    folder: Path
    model: DraftHead
    cache_dtype: torch.dtype
    max_model_len: int
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class LoadedHeadDrafter:
    """As `draft_model.LoadedDrafter`."""

    loaded: LoadedHead

    def plan_drafter(self, cache: KvCache) -> drafts.NewPlanDrafter:
        """cache: of one group, as `HeadDrafter` requires it."""
        return partial(HeadDrafter, self.loaded.model, cache, self.loaded.max_model_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFiles:
    """Where a head lies. unused: what names begin with that it does not need. drafts: as of `loader.load`."""

    folder: Path
    spec: DraftHeadSpec
    places: Mapping[str, Place]
    unused: tuple[str, ...]
    drafts: bool

    def ids(self, vocab_size: int) -> Tensor | None:
        """Which id of the model each logit of the head belongs to; None where it has none of its own.

        Raises ModelError where that is no id of the model, or one id comes twice.
        """
        if self.spec.kind == "mtp":
            return None
        own = torch.arange(self.spec.layer.num_labels)
        added = safetensors_checkpoint.integers(self.folder, "d2t")
        if added is not None and len(added) == len(own):
            own = own + added
        elif added is not None or len(own) != vocab_size:
            found = "is missing" if added is None else f"has {len(added):,} ids"
            raise ModelError(f"{self.folder}: tensor d2t {found}, and {len(own):,} ids can be drafted")
        if own.min() < 0 or own.max() >= vocab_size or len(own.unique()) < len(own):
            raise ModelError(f"{self.folder}: d2t names ids twice, or such as the model does not have")
        return own


def load(
    options: ServeOptions,
    named: Path | None,
    target: LoadedModel,
    facts: EngineFacts,
    device: torch.device,
    ops: Ops,
    on_progress: Callable[[Progress], None],
) -> LoadedHeadDrafter | None:
    """None where the options name no head; with auto, where the checkpoint has none that could be used.

    named: as of `draft_model.named`. target, facts: of the model that is drafted for, which gives its hidden states
    from now on. Raises StartError where drafts could not be verified, and ModelError where the head is none for it.
    """
    files = head_files(options, named, target.folder, target.config, target.model.spec)
    if files is None:
        return None
    why = refusal(options, facts, overlaps=device.type != "cpu", in_cpp=ops.row_sampler is not None)
    if target.through_transformers:
        why = "it reads hidden states of layers, which are not known of a model through transformers"
    if why and options.speculation == "auto":
        return None
    if why:
        raise StartError(f"--speculation {options.speculation}: {why}; choose auto or off")
    spec, dtype = files.spec, target.dtype
    shapes, kinds = spec.parameter_shapes, loader.kinds(files.folder, drafts=files.drafts)
    formats = quant_formats.formats(
        options.quantization, spec.layer, shapes, files.places, kinds, device=quant_formats.PROCESSORS
    )
    weights_bytes = quant_formats.num_bytes(shapes, formats, dtype.itemsize, quant_formats.PROCESSORS)
    check_memory(facts.weights_bytes + weights_bytes, device, files.folder)
    cache_dtype = placement.cache_dtype_of(options, spec.layer, dtype, device)
    with torch.inference_mode():
        tensors = loader.load(
            files.folder,
            files.places,
            shapes,
            dtype,
            device,
            loading_progress(on_progress),
            formats,
            ops.quantize,
            unused=files.unused,
            drafts=files.drafts,
        )
        limit, ids = target.max_model_len, files.ids(facts.vocab_size)
        head = DraftHead(spec, ops, tensors, target.model, ids, num_positions=limit)
    target.model.keep(spec.layers)
    loaded = LoadedHead(
        folder=files.folder, model=head, cache_dtype=cache_dtype, max_model_len=limit, weights_bytes=weights_bytes
    )
    return LoadedHeadDrafter(loaded)


def head_files(
    options: ServeOptions, named: Path | None, folder: Path, config: ModelConfig, target: DecoderSpec
) -> HeadFiles | None:
    """The head that the options name for a model: a checkpoint of EAGLE-3, or the layer in the model's own checkpoint.

    named: as of `draft_model.named`. None where they name none; with auto, where the checkpoint has none that is read.
    Raises ModelError where it is none for the model, and StartError where the checkpoint lacks what is named.
    """
    if named is not None:
        own_config = None if gguf.is_gguf(named) else read_config(named)
        is_head = own_config is not None and draft_heads.is_eagle3(own_config)
        return _eagle3(named, own_config, target) if own_config is not None and is_head else None
    if not reads_own_layer(options.speculation, ranks=options.ranks):
        return None
    family = declared(config.architectures)
    names = None if family is None else family.drafts
    spec = draft_heads.mtp(target, names) if names is not None and loader.has_drafts(folder) else None
    if family is None or names is None or spec is None:
        if options.speculation == "mtp":
            raise StartError(
                f"--speculation mtp: {folder} has no layers that draft tokens and can be used; choose auto or off"
            )
        return None
    places = draft_heads.mtp_places(family, names, spec)
    unused = draft_heads.mtp_unused(names, spec, config.num_nextn_predict_layers or 0)
    return HeadFiles(folder=folder, spec=spec, places=places, unused=unused, drafts=True)


def _eagle3(folder: Path, config: ModelConfig, target: DecoderSpec) -> HeadFiles:
    if config.vocab_size != target.vocab_size:
        raise ModelError(
            f"{folder}: the head was made for a model with {config.vocab_size:,} ids, and not {target.vocab_size:,}"
        )
    names = safetensors_checkpoint.names(folder)
    spec = draft_heads.eagle3(config, target, own_embedding="model.embed_tokens.weight" in names)
    places = draft_heads.eagle3_places(spec)
    return HeadFiles(folder=folder, spec=spec, places=places, unused=(), drafts=False)


def refusal(options: ServeOptions, facts: EngineFacts, *, overlaps: bool, in_cpp: bool) -> str:
    """Why a head cannot draft here; "" where it can."""
    if why := drafts.refusal(facts, overlaps=overlaps, in_cpp=in_cpp):
        return why
    if options.ranks > 1:
        return "a head reads hidden states of the model, of which ranks have theirs in several processes"
    try:
        whole_group(facts)
    except ValueError as error:
        return str(error)
    return ""
