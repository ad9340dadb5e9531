"""Builds the CPU kernels when Kvasir is installed or packed into a wheel; hatchling calls it.

Where there is no compiler, or none that succeeds, the installation goes on without them: the engine then computes with
torch's operations, and says so when it starts.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library to the wheel, whose name then says which platform it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 -- hatchling's
        """Called before the files are collected; version is `standard` or `editable`."""
        builder = _builder(Path(self.root))
        try:
            if not builder.is_fresh():
                self.app.display_waiting("compiling the CPU kernels")
                builder.build()
        except builder.BuildError as error:
            self.app.display_warning(f"without CPU kernels in C++, torch's own will serve: {error}")
            return
        build_data["artifacts"].append(f"/{builder.LIBRARY.relative_to(self.root)}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{builder.platform_tag()}"


def _builder(root: Path) -> ModuleType:
    """The package's own builder, by its path: nothing of the package can be imported yet."""
    path = root / "runtime" / "kvasir_runtime" / "kernels" / "cpu" / "build.py"
    spec = importlib.util.spec_from_file_location("kvasir_cpu_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
