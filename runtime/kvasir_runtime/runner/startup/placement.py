"""Device, dtype and KV cache dtype of a model. Called by `build`."""

import logging
from typing import Final

import torch

from kvasir_api import forecast
from kvasir_api.options import Device, Dtype, KvCacheDtype, ServeOptions
from kvasir_runtime.errors import DriverTooOldError, ModelError
from kvasir_runtime.kernels.kv_quant import FLOAT8, INT4
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.runner.startup import cuda_driver

LOG = logging.getLogger(__name__)
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(wanted: Device) -> torch.device:
    """The device of an option. auto takes CUDA when there is one, and logs that a driver is too old for it.

    Raises StartError where CUDA is requested and cannot be used.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda:0")
    error = cuda_driver.absence(torch.version.cuda)
    if wanted == "cuda":
        raise error
    if isinstance(error, DriverTooOldError):
        LOG.warning("the CPU serves: %s", error)
    return torch.device("cpu")


def choose_dtype(
    wanted: Dtype,
    checkpoint: str | None,
    device: torch.device,
    *,
    capability: tuple[int, int],
    packs_bfloat16: bool = False,
) -> torch.dtype:
    """The dtype of an option. auto follows the checkpoint, except for float32 on CUDA (`forecast.cuda_dtype`) and for
    16-bit types on a CPU that computes them badly.

    checkpoint: the name in config.json, None where it names none (float32 by convention). capability: of the card.
    packs_bfloat16: as `Ops.packs_bfloat16`. Raises ModelError for a name that is no floating type served here.
    """
    name = (checkpoint or "float32") if wanted == "auto" else wanted
    if name not in _DTYPES:
        raise ModelError(f"config.json: dtype {name} is not supported; expected one of {', '.join(_DTYPES)}")
    if wanted == "auto" and device.type == "cuda":
        name = forecast.cuda_dtype(name, capability)
    dtype = _DTYPES[name]
    if wanted == "auto" and device.type == "cpu" and dtype != torch.float32:
        return torch.bfloat16 if packs_bfloat16 or _cpu_computes_bfloat16() else torch.float32
    return dtype


def dtype_of(
    options: ServeOptions, checkpoint: str | None, device: torch.device, *, packs_bfloat16: bool = False
) -> torch.dtype:
    """`choose_dtype` for a device that is there."""
    return choose_dtype(options.dtype, checkpoint, device, capability=capability(device), packs_bfloat16=packs_bfloat16)


def choose_cache_dtype(
    wanted: KvCacheDtype,
    dtype: torch.dtype,
    device: torch.device,
    *,
    head_dim: int,
    capability: tuple[int, int],
    latent: bool = False,
) -> torch.dtype:
    """The dtype of the KV cache of an option; auto is that of the model. capability: of the card, (0, 0) of a CPU.

    latent: whether a token has one compressed row in place of keys and values. Raises ModelError for fp8 where nothing
    computes it, for int8 on CUDA where rows are no whole words, and for int4 as `forecast.int4_cache_refusal`.
    """
    if wanted == "auto":
        return dtype
    if wanted == "fp8":
        if capability < (8, 9):
            what = "a CPU" if device.type == "cpu" else "capability {}.{}".format(*capability)
            raise ModelError(f"kv_cache_dtype fp8 needs a CUDA device of capability 8.9, this is {what}; take int8")
        return FLOAT8
    if wanted == "int4":
        refusal = forecast.int4_cache_refusal(latent=latent, head_dim=head_dim, device=device.type)
        if refusal:
            raise ModelError(refusal)
        return INT4
    if device.type != "cpu" and head_dim % 4:
        raise ModelError(f"kv_cache_dtype int8 needs heads of a multiple of 4 on CUDA, head_dim is {head_dim}")
    return torch.int8


def cache_dtype_of(options: ServeOptions, spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """`choose_cache_dtype` for a model of dtype on a device."""
    return choose_cache_dtype(
        options.kv_cache_dtype,
        dtype,
        device,
        head_dim=spec.head_dim,
        capability=capability(device),
        latent=spec.latent is not None,
    )


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a card, (0, 0) of a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def device_name(device: torch.device) -> str:
    """For a banner: the card's name, or the kind of CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()})"


def _cpu_computes_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16, which torch's operations need to be quicker than in float32.

    Read from the CPU, not measured: on a busy machine a measurement would change from start to start.
    """
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if any(getattr(torch.cpu, name, bool)() for name in checks):
        return True
    is_arm = torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "AVX2", "AVX512", "NO AVX")
    return is_arm and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
