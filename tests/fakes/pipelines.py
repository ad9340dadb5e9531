"""The pipelines of docs/guides/ci, run step by step as GitHub Actions and GitLab CI run theirs: each step in a shell of
its own, with its variables, secrets filled in, and those that an earlier step of the job left for it."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from fakes.guides import ROOT, execute

RECIPES: Final = ROOT / "docs" / "guides" / "ci"
GITHUB, GITLAB = RECIPES / "github.yaml", RECIPES / "gitlab.yaml"
_FILLED: Final = re.compile(r"\$\{\{ (?:secrets|vars)\.(\w+) \}\}")
_NO_JOBS: Final = {"stages", "default", "workflow"}


class PipelineStep(NamedTuple):
    """What one shell runs."""

    script: str
    variables: Mapping[str, str]


def jobs(recipe: Path) -> dict[str, list[PipelineStep]]:
    """Steps of each job, without those that the provider has ready (checkout)."""
    found: dict[str, Any] = yaml.safe_load(recipe.read_text())
    if recipe == GITHUB:
        return {
            name: [PipelineStep(step["run"], step.get("env", {})) for step in job["steps"] if "run" in step]
            for name, job in found["jobs"].items()
        }
    return {
        name: [PipelineStep("\n".join(job["script"]), job.get("variables", {}))]
        for name, job in found.items()
        if name not in _NO_JOBS
    }


def checkout(directory: Path, **manifests: str) -> Path:
    """A repository as the guide has it: manifests by name, and the script."""
    (directory / "ci").mkdir()
    shutil.copy(RECIPES / "deploy.sh", directory / "ci")
    (directory / "models").mkdir()
    for name, text in manifests.items():
        (directory / "models" / f"{name}.yaml").write_text(text)
    return directory


def run(job: list[PipelineStep], repository: Path, secrets: Mapping[str, str], **variables: str) -> str:
    """What the steps of a job print. secrets: with the variables of the environment."""
    left = repository / "left-for-later-steps"
    left.touch()
    given = {"RUNNER_TEMP": str(repository), "GITHUB_ENV": str(left), **variables}
    printed = ""
    for step in job:
        own = {name: _FILLED.sub(lambda found: secrets[found[1]], value) for name, value in step.variables.items()}
        earlier = dict(line.split("=", 1) for line in left.read_text().splitlines())
        printed += execute(step.script, repository, limit_s=150, **{**given, **earlier, **own})
    return printed
