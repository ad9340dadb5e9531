"""Parameters for tests of the C++ kernels: variants by name, and tiles that are arrays."""

from pathlib import Path
from typing import Final

import pytest

from kvasir_runtime.kernels.cpu import build, linear

EMULATED_BFLOAT16: Final = Path(__file__).with_name("bfloat16_emulated.h")
ONE_WORKER: Final = pytest.mark.xdist_group("emulated-amx")
"""Of what may need a library that is compiled for the run."""
VARIANTS: Final = [pytest.param(isa, marks=ONE_WORKER if isa == linear.AMX_VARIANT else ()) for isa in build.VARIANTS]
EMULATED_AMX: Final = pytest.param("emulated_amx", marks=ONE_WORKER)
