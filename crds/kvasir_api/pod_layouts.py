"""Over how many pods a replica on processors lies: the layouts of stages, of which each pod has one; and what ranks devices can have.
The operator chooses by it.

Stages and not ranks of a layer, since pods exchange by their network: a hidden state for each token and stage, in place of two sums
for each token and layer. Pure.
"""

from dataclasses import replace
from typing import Final

from kvasir_api import forecast, inspection, layouts
from kvasir_api.forecast import MemoryFit, ModelShape
from kvasir_api.inspection import ModelFacts
from kvasir_api.layouts import Layout, LayoutForecast, Wanted
from kvasir_api.options import RuntimeOptions
from kvasir_api.rank_state import MOST_RANKS
from kvasir_api.stored_bits import Compute

DEVICE: Final = "cpu"


def over_pods(facts: ModelFacts, options: RuntimeOptions, memory_bytes: int) -> tuple[LayoutForecast, ...]:
    """One for each number of pods, of which that with the fewest that holds the longest request, and runtime.kvCacheTokens, is chosen.

    options: without ranks. memory_bytes: of each pod. Empty where nothing can be divided: the architecture is not known, the model keeps
    no cache, or it cannot have that of the options. Speeds are not forecast on processors.
    """
    shape = inspection.held_on(facts.shape, DEVICE)
    if not facts.supported or shape.keeps_nothing or inspection.cache_refusal(shape, options, DEVICE):
        return ()
    dtype = inspection.dtype_of(facts, options, DEVICE)
    one, room_bytes = of_one(shape, options, dtype, memory_bytes)
    wanted = Wanted(
        room_bytes=room_bytes,
        one=one,
        parts=layouts.weight_parts(shape, dtype, options.quantization),
        max_sequences=options.max_sequences,
        longest=options.max_model_len or shape.max_positions,
    )
    stages = [Layout(tensor=1, stages=number) for number in range(1, min(MOST_RANKS, shape.layers) + 1)]
    return layouts.forecasts(shape, wanted, stages, None)


def refusal(options: RuntimeOptions, device: Compute) -> str:
    """Why replicas on such a device cannot have these ranks, behind the name of an option; empty where they can."""
    if device == "cpu" or options.ranks == 1:
        return ""
    if options.ranks != options.tensor_parallel_size:
        return f"{options.ranks} ranks are not possible on CUDA: devices divide layers, by --tensor-parallel-size alone"
    if options.nnodes > 1:
        return f"--nnodes {options.nnodes} is not possible on CUDA: all devices are of one host"
    if options.enable_expert_parallel:
        return "--enable-expert-parallel is not possible on CUDA: each device has a part of every expert"
    if options.weights_host_bytes:
        return "--weights-host-bytes is not possible beside --tensor-parallel-size"
    return ""


def of_one(shape: ModelShape, options: RuntimeOptions, dtype: str, memory_bytes: int) -> tuple[MemoryFit, int]:
    """The forecast of one process with so much memory, whose sequence_tokens are all that the cache has to hold, and its room for
    weights and cache. The runtime decides by it whether memory holds a cut.
    """
    one = forecast.fit(
        shape,
        memory_bytes=memory_bytes,
        memory_fraction=options.memory_fraction,
        dtype=dtype,
        max_model_len=options.max_model_len,
        max_batch_tokens=options.max_batch_tokens or forecast.BATCH_TOKENS[DEVICE],
        process_bytes=forecast.PROCESS_BYTES[DEVICE] + inspection.copies_of_states(shape, options, dtype, DEVICE),
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        max_sequences=options.max_sequences,
    )
    held = replace(one, sequence_tokens=max(one.sequence_tokens, options.kv_cache_tokens))
    return held, layouts.room_bytes(one, DEVICE, memory_bytes, options.memory_fraction)
