"""Over how many pods a replica on processors lies: the layouts of stages, of which each pod has one; and what ranks devices can have.
The operator chooses by it.

Stages and not ranks of a layer, since pods exchange by their network: a hidden state for each token and stage, in place of two sums
for each token and layer. Pure.
"""

from kvasir_api import inspection, layouts, rank_forecast
from kvasir_api.inspection import ModelFacts
from kvasir_api.layouts import Layout, LayoutForecast
from kvasir_api.options import RuntimeOptions
from kvasir_api.rank_forecast import DEVICE
from kvasir_api.rank_state import MOST_RANKS
from kvasir_api.stored_bits import Compute


def over_pods(facts: ModelFacts, options: RuntimeOptions, memory_bytes: int) -> tuple[LayoutForecast, ...]:
    """One for each number of pods, of which that with the fewest that holds the longest request, and runtime.kvCacheTokens, is chosen.

    options: without ranks. memory_bytes: of each pod. Empty where nothing can be divided: the architecture is not known, the model keeps
    no cache, or it cannot have that of the options. Speeds are not forecast on processors.
    """
    shape = inspection.held_on(facts.shape, DEVICE)
    if not facts.supported or shape.keeps_nothing or inspection.cache_refusal(shape, options, DEVICE):
        return ()
    dtype = inspection.dtype_of(facts, options, DEVICE)
    wanted = rank_forecast.wanted(shape, options, dtype, memory_bytes)
    stages = [Layout(tensor=1, stages=number) for number in range(1, min(MOST_RANKS, layouts.most_stages(shape)) + 1)]
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
