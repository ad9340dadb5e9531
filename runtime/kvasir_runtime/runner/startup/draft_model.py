"""Loads the draft model that the options name, of the model's vocabulary or another. Called by `build`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from kvasir_api.options import ServeOptions
from kvasir_api.speculation import draft_model
from kvasir_runtime import source
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.runner import drafts
from kvasir_runtime.runner.draft_model import DraftModel, whole_group
from kvasir_runtime.runner.startup.load_model import LoadedModel, load_model
from kvasir_runtime.runner.text_draft_model import TextDraftModel
from kvasir_runtime.runner.vocabulary_pair import TextVocabulary, VocabularyPair
from kvasir_runtime.tokenizer_files import build
from kvasir_runtime.wire import EngineFacts

LEAST_COMMON: Final = 0.9
"""Of the larger vocabulary, what two must have in common to count as one: in a family they differ by a few tokens."""


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """pair: None where the draft model has the model's vocabulary."""

    loaded: LoadedModel
    pair: VocabularyPair | None

    def plan_drafter(self, cache: KvCache) -> drafts.NewPlanDrafter:
        """cache: of one group, as `DraftModel` and `TextDraftModel` require it."""
        model, longest = self.loaded.model, self.loaded.max_model_len
        if self.pair is None:
            return partial(DraftModel, model, cache, longest)
        return partial(TextDraftModel, model, cache, longest, self.pair)


def named(options: ServeOptions, facts: EngineFacts, device: torch.device, ops: Ops) -> Path | None:
    """Where the drafter lies that the options name, a model or a head. None where they name none.

    facts: of the model that is drafted for. Raises StartError, before anything is fetched, where drafts could not be
    verified, and the errors of `source.resolve`.
    """
    if not draft_model(options.speculation):
        return None
    if why := drafts.refusal(facts, overlaps=device.type != "cpu", in_cpp=ops.row_sampler is not None):
        raise StartError(f"--speculation {options.speculation}: {why}; choose auto or off")
    return source.resolve_drafter(options.speculation)


def load(
    options: ServeOptions,
    own: Path,
    folder: Path,
    facts: EngineFacts,
    device: torch.device,
    ops: Ops,
    on_progress: Callable[[Progress], None],
) -> LoadedDrafter:
    """The draft model in the folder own. folder, facts: of the model that is drafted for.

    Raises StartError where the draft model has layers that cannot take back a token, or a tokenizer that does not keep
    texts.
    """
    option = f"--speculation {options.speculation}"
    same = same_vocabulary(folder, own)
    if same:
        try:
            whole_group(facts)
        except ValueError as error:
            raise StartError(f"{option}: {error}; choose auto or off") from error
    # Of the options that are left its type, its bits and the cache's are to be as the model's.
    own_options = {"max_model_len": 0, "hf_overrides": "", "batch_invariant": False, "weights_host_bytes": 0}
    model_impl = "kvasir" if options.model_impl == "kvasir" else "auto"
    given = options.model_copy(
        update=own_options
        | {
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
            "nnodes": 1,
            "enable_expert_parallel": False,
            "enable_eplb": False,
            "model_impl": model_impl,
        }
    )
    alone = replace(ops, collectives=None)
    loaded = load_model(given, own, device, alone, on_progress, beside_bytes=facts.weights_bytes)
    if loaded.model.spec.state is not None or loaded.model.spec.head != "vocabulary":
        raise StartError(f"{option}: a draft model generates tokens, and has no layer with a recurrent state")
    if same:
        return LoadedDrafter(loaded, None)
    return LoadedDrafter(loaded, pair_of(folder, own, facts.vocab_size, loaded.model.spec.vocab_size))


def same_vocabulary(model: Path, drafter: Path) -> bool:
    """Whether the ids of two models stand for the same tokens, but for a few."""
    ours, theirs = (build.encoder(folder).get_vocab() for folder in (model, drafter))
    same = sum(theirs.get(token) == number for token, number in ours.items())
    return same >= LEAST_COMMON * max(len(ours), len(theirs))


def pair_of(model: Path, drafter: Path, our_size: int, their_size: int) -> VocabularyPair:
    """The vocabularies of two models, of these sizes. Raises StartError where one does not keep texts."""
    found = []
    for folder, size in ((model, our_size), (drafter, their_size)):
        vocabulary = TextVocabulary.of(build.encoder(folder), size)
        if not vocabulary.keeps_texts:
            raise StartError(
                f"{drafter} cannot draft for {model}: their vocabularies differ, and the tokenizer of {folder} changes"
                " texts, so that they cannot be aligned; name a draft model of the same vocabulary, or auto"
            )
        found.append(vocabulary)
    return VocabularyPair(*found)
