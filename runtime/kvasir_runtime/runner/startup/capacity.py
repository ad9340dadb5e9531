"""How many blocks the KV cache has and how long a sequence may be: arithmetic on bytes. Called by `build`."""

from dataclasses import dataclass
from pathlib import Path

from kvasir_api import forecast
from kvasir_api.hf_config import SequenceLimits
from kvasir_api.model_shape import ModelShape
from kvasir_runtime.errors import CapacityError, DeviceMemoryError, ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """Bytes, measured after the weights were loaded and one step of full size was run.

    limit: of the device or the container. used: held now, by this process on a CPU and by all processes on a GPU.
    available: held by no process. peak: what a step takes temporarily. graph: what graphs and copies of
    states will hold permanently.
    others: of used, what other programs hold on a GPU, as far as that is known.
    shared: the limit is that of the machine, which other processes use too.
    """

    limit_bytes: int
    used_bytes: int
    available_bytes: int
    peak_bytes: int
    graph_bytes: int = 0
    others_bytes: int = 0
    shared: bool = False

    @property
    def step_bytes(self) -> int:
        """What steps take beside the cache."""
        return self.peak_bytes + self.graph_bytes


def cache_blocks(memory: MeasuredMemory, fraction: float, block_bytes: int, requested_blocks: int = 0) -> int:
    """Blocks that fit into the fraction of the limit beside what is held and what a step takes.

    Of shared memory only a modest part, but at least requested_blocks, those of the longest sequence that the options
    request for. Raises CapacityError when not even one fits, and DeviceMemoryError where one would without the other
    programs on the device.
    """
    budget = int(memory.limit_bytes * fraction) - memory.used_bytes - memory.step_bytes
    room = min(budget, int(memory.available_bytes * fraction) - memory.step_bytes)
    if room < block_bytes:
        numbers = (
            f"no memory is left for the KV cache: {fraction:.0%} of {_mib(memory.limit_bytes)} is the limit,"
            f" {_mib(memory.used_bytes)} are taken, a step needs {_mib(memory.step_bytes)},"
            f" {_mib(memory.available_bytes)} are free"
        )
        if room + memory.others_bytes >= block_bytes:
            raise DeviceMemoryError(
                f"{numbers}; other programs hold {_mib(memory.others_bytes)} of the device: end them"
            )
        raise CapacityError(f"{numbers}; raise --memory-fraction or the container's memory, or set --kv-cache-tokens")
    if memory.shared:
        room = min(
            room, max(forecast.shared_cache_bytes(memory.available_bytes), requested_blocks * block_bytes, block_bytes)
        )
    return room // block_bytes


def check_weights(weights_bytes: int, free_bytes: int, limit_bytes: int, folder: Path) -> None:
    """Reject weights that memory cannot hold.

    Raises CapacityError where they are more than the limit, and DeviceMemoryError where they are more than is free.
    """
    if weights_bytes > limit_bytes:
        raise CapacityError(f"{folder}: the weights take {weights_bytes:,} bytes, {limit_bytes:,} are there")
    if weights_bytes > free_bytes:
        raise DeviceMemoryError(
            f"{folder}: the weights take {weights_bytes:,} bytes, and of the device's {limit_bytes:,} bytes"
            f" {free_bytes:,} are free: other programs hold the rest; end them"
        )


def check_forecast(
    model: ModelShape,
    *,
    limit_bytes: int,
    fraction: float,
    dtype: str,
    requested: int,
    block_size: int,
    kv_cache_dtype: str = "auto",
    quantization: str = "auto",
    weights_host_bytes: int = 0,
) -> None:
    """Reject before loading what `cache_blocks` and `fitting_limit` would certainly reject after it.

    requested: the option max_model_len in tokens, 0 if it was not given: then one block is enough. A step's activations
    are left out, since they must be measured. Raises CapacityError with the numbers.
    """
    least = max(requested - 1, block_size)
    judged = forecast.fit(
        model,
        memory_bytes=limit_bytes,
        memory_fraction=fraction,
        dtype=dtype,
        max_model_len=least,
        max_batch_tokens=0,
        kv_cache_dtype=kv_cache_dtype,
        quantization=quantization,
        weights_host_bytes=weights_host_bytes,
    )
    if judged.verdict == "TooSmall":
        raise CapacityError(f"{judged.message}; raise --memory-fraction or the container's memory")


def check_cache(tokens: int, token_bytes: int, weights_bytes: int, limit_bytes: int, copies_bytes: int = 0) -> None:
    """Reject a KV cache of a given size that can never fit, whether or not the kernel would promise the memory.

    tokens: 0 where the size follows from the memory. limit_bytes: most that this process may use. copies_bytes: of
    copies of experts. Raises CapacityError.
    """
    if tokens and tokens * token_bytes + weights_bytes + copies_bytes > limit_bytes:
        copies = f" and copies of experts (--enable-eplb) {_mib(copies_bytes)}" if copies_bytes else ""
        raise CapacityError(
            f"a KV cache of {tokens:,} tokens takes {_mib(tokens * token_bytes)} and the weights {_mib(weights_bytes)}"
            f"{copies}, but this process may use {_mib(limit_bytes)}; lower --kv-cache-tokens or raise the container's"
            " memory"
        )


def sequence_limit(wanted: int, limits: SequenceLimits) -> int:
    """max_model_len: what was requested, or with 0 what the model was made for.

    Raises ModelError when more is requested than the model has positions, stretched by its rotary scaling or not.
    """
    if wanted > limits.most:
        raise ModelError(
            f"max_model_len {wanted} is more than the model's {limits.most} positions; if its model card names a rotary"
            " scaling for more, give it as --hf-overrides '{\"rope_scaling\": {...}}'"
        )
    return wanted or limits.usual


def fitting_limit(limit: int, requested: int, capacity_tokens: int, data_ranks: int = 1) -> int:
    """max_model_len that the cache can hold: one sequence must fit into it alone.

    requested: the option, 0 if it was not given. Only a limit that was not given is lowered; else CapacityError. The
    last token of an answer is never computed, so it needs no place.
    """
    if limit <= capacity_tokens + 1:
        return limit
    if requested:
        where = "the KV cache" if data_ranks == 1 else f"each of {data_ranks} parts of the KV cache"
        raise CapacityError(
            f"{where} holds {capacity_tokens} tokens, less than max_model_len {limit};"
            " lower --max-model-len or raise --kv-cache-tokens"
        )
    return capacity_tokens + 1


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
