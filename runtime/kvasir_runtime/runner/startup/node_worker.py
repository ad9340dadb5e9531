"""The engine process of a node behind the first: it computes its ranks' part of what node 0 sends, until that ends.

Called by `engine_main` in place of the engine. It keeps no requests and decides nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from kvasir_api.options import ServeOptions
from kvasir_runtime import source
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.kernels.backends import ops_for
from kvasir_runtime.runner.startup import host_resources, placement, rank_processes, rank_worker


def follow(options: ServeOptions, on_progress: Callable[[Progress], None]) -> NoReturn:
    """Join node 0 and compute. on_progress: as of `build`.

    Raises StartError where this node cannot take part, RankLostError with the reason when the model has ended, and what
    computing raises, after the others got the reason.
    """
    device = placement.choose_device(options.device)
    threads = max(host_resources.num_threads() // options.local_ranks, 1)
    ops = ops_for(device, batch_invariant=options.batch_invariant)
    group = rank_processes.start(options, device, threads, on_progress)
    try:
        folder = source.resolve(options.model)
        rank_worker.compute(options, folder, device, replace(ops, collectives=group), threads, on_progress)
    except BaseException as error:
        group.abort(f"rank {group.rank} on node {options.node_rank}: {rank_worker.words(error)}")
        raise
