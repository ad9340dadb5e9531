"""The process of one rank behind the first: python -m kvasir_runtime.runner.startup.rank_worker.

Started by `rank_processes` with a RankArgs on standard input. It loads its part of the model, then computes what rank 0
sends it, until the engine ends. Its last words are one line about why it ended, none where the engine or another rank
ended first.
"""

import gc
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from kvasir_api.options import ServeOptions
from kvasir_runtime import arriving, log_config, malloc, source
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import CapacityError, RankLostError
from kvasir_runtime.kernels import backends
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.rank_messages import NewCache
from kvasir_runtime.layers.ranks import follow
from kvasir_runtime.runner.graphs.capture import CudaGraphCapturer
from kvasir_runtime.runner.startup import host_resources, rank_processes
from kvasir_runtime.runner.startup.cache_allocation import allocate_cache
from kvasir_runtime.runner.startup.load_model import load_model
from kvasir_runtime.runner.startup.rank_processes import RankArgs

STDIN = 0


def main() -> int:
    """The exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    malloc.share_arenas()
    with open(STDIN, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()
    if not line:
        return 1  # the engine ended
    threading.Thread(target=_die_with_engine, daemon=True, name="engine").start()
    args = msgspec.json.decode(line, type=RankArgs)
    os.set_inheritable(args.last_words, False)  # its end is that of this process
    try:
        serve(args)
    except RankLostError:
        return 1  # another rank has said why
    except BaseException as error:  # noqa: BLE001 -- whatever it was, rank 0 reports it
        os.write(args.last_words, words(error).encode())
        return 1


def serve(args: RankArgs) -> NoReturn:
    """Compute a rank's part. Raises StartError, RankLostError and what computing raises."""
    options = ServeOptions.model_validate(args.options)
    log_config.configure(options.log_format)
    group = backends.collectives_of(args.descriptor, args.rank, args.ranks, args.stages)
    os.close(args.descriptor)
    if options.nnodes > 1:
        group = rank_processes.node_collectives(options, group, None)
    device = torch.device(args.device)
    if args.meeting != rank_processes.NONE:
        from kvasir_runtime.kernels.torch_collectives import TorchCollectives

        torch.set_num_threads(args.threads)
        group = cards = TorchCollectives(group, device)
        cards.connect(args.meeting)
    ops = replace(backends.ops_for(device, batch_invariant=options.batch_invariant), collectives=group)
    compute(options, source.resolve(options.model), device, ops, args.threads, lambda _: None)


def compute(
    options: ServeOptions,
    folder: Path,
    device: torch.device,
    ops: Ops,
    threads: int,
    on_progress: Callable[[Progress], None],
) -> NoReturn:
    """Load the part of ops' rank from the model's folder, and compute what rank 0 sends. Raises as `serve`."""
    assert ops.collectives is not None
    on_card = device.type == "cuda"
    if not on_card:
        host_resources.use(threads, ops)
    rank_bytes = rank_processes.rank_memory(options, ops.collectives)
    loaded = arriving.loaded(
        folder, lambda folder: load_model(options, folder, device, ops, on_progress, rank_bytes=rank_bytes)
    )
    if not on_card:
        host_resources.return_memory()

    def allocate(made: NewCache) -> KvCache:
        dtype = getattr(torch, made.dtype)
        cache = allocate_cache(loaded.model.spec, made.num_blocks, made.block_size, dtype, device)
        if options.nnodes > 1:
            _check_cache((cache.blocks.nbytes + loaded.copies_bytes) * options.local_ranks)
        return cache

    gc.freeze()  # as the engine does: a collection while steps are computed need not look at what was loaded
    on_progress(Progress(phase="warming", progress_fraction=1.0, message="computing for node 0", computes=True))
    ops.collectives.end_start()
    follow(loaded.model, ops.collectives, allocate, CudaGraphCapturer(device) if on_card else None)


def _check_cache(num_bytes: int) -> None:
    """num_bytes: of the KV cache of this host, and of copies of experts. Rank 0 has chosen its size by the memory of
    its own host.
    """
    free_bytes = min(host_resources.memory_limit_bytes(), host_resources.memory_available_bytes())
    if num_bytes > free_bytes:
        raise CapacityError(
            f"the KV cache takes {num_bytes:,} bytes on each node, and {free_bytes:,} are free on this one: set"
            " --kv-cache-tokens or lower --memory-fraction"
        )


def words(error: BaseException) -> str:
    """Why a rank ended, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _die_with_engine() -> None:
    """Only the end of the input ever comes. Read without Python's buffer, as in `engine_main`."""
    while os.read(STDIN, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    os._exit(main())  # at once, also where a card still waits for others
