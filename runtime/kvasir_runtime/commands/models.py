"""`kvasir models`: which are here, in caches and in given directories, and which can be served."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvasir_runtime import gguf
from kvasir_runtime.commands.model_facts import architecture_of
from kvasir_runtime.fetch import fetched_model
from kvasir_runtime.server.banner import size
from kvasir_runtime.tokenizer_files import files

if TYPE_CHECKING:
    from kvasir_runtime.models.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model on this machine. problem: why it cannot be served, "" when it can. weights_bytes: of its weight files.

    folder: its directory, or the one GGUF file that is all of it.
    """

    name: str
    folder: str
    architecture: str
    weights_bytes: int
    problem: str


def local_models(directories: tuple[str, ...], cache: Path, fetched: Path | None = None) -> list[LocalModel]:
    """Models in the hub's cache, in the folder of those fetched from elsewhere, and those that the directories
    are or hold, each once."""
    places = {folder: name for name, folder in _cached(cache)}
    if fetched is not None:
        places |= {folder: name for name, folder in fetched_model.kept(fetched)}
    for directory in directories:
        root = Path(directory).expanduser()
        for folder in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
            if (folder / "config.json").is_file():
                places.setdefault(folder, str(folder))
        for path in sorted(path for path in root.rglob(f"*{gguf.SUFFIX}") if gguf.is_gguf(path)):
            if gguf.parts(str(path))[0] == str(path):
                places[path] = str(path)
    return [described(name, folder) for folder, name in places.items()]


def described(name: str, folder: Path) -> LocalModel:
    """One model, looked at but not loaded."""
    from kvasir_runtime.errors import ModelError
    from kvasir_runtime.frontend import tokenizer
    from kvasir_runtime.models import registry
    from kvasir_runtime.models.config import read_document

    architecture, problem = "?", ""
    parts = map(Path, gguf.parts(str(folder))) if gguf.is_gguf(folder) else folder.glob("*.safetensors")
    weights = sum(path.stat().st_size for path in parts if path.exists())
    try:
        architecture = architecture_of(read_document(folder))
        registry.read(folder)
        if gguf.is_gguf(folder):
            tokenizer.load(folder)
        elif not weights:
            problem = "no safetensors"
        else:
            files.find(folder)
    except (ModelError, ValueError) as error:
        problem = str(error)
    return LocalModel(name=name, folder=str(folder), architecture=architecture, weights_bytes=weights, problem=problem)


def _cached(cache: Path) -> Iterator[tuple[str, Path]]:
    """Names and snapshot folders, as huggingface_hub lays its cache out: models--ORG--NAME/snapshots/REVISION."""
    for repository in sorted(cache.glob("models--*")):
        name = repository.name.removeprefix("models--").replace("--", "/")
        snapshots = repository / "snapshots"
        main = repository / "refs" / "main"
        folders = [snapshots / main.read_text().strip()] if main.is_file() else sorted(snapshots.glob("*"))
        yield from ((name, folder) for folder in folders if (folder / "config.json").is_file())


def _families() -> tuple["Family", ...]:
    from kvasir_runtime.models.registry import FAMILIES

    return FAMILIES


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where huggingface_hub keeps models: HF_HUB_CACHE, else hub in HF_HOME, else below the user's cache."""
    if given := environment.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    base = environment.get("XDG_CACHE_HOME", "~/.cache")
    return Path(environment.get("HF_HOME", f"{base}/huggingface")).expanduser() / "hub"


def table(models: list[LocalModel]) -> str:
    """Aligned columns."""
    rows = [("NAME", "ARCHITECTURE", "WEIGHTS", "SERVED")]
    rows += [
        (m.name, m.architecture, size(m.weights_bytes), f"no: {m.problem}" if m.problem else "yes") for m in models
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


@click.command("models", short_help="List the models on this machine.")
@click.argument("directories", nargs=-1, type=click.Path(exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option(
    "--available", is_flag=True, help="List the architectures that can be served instead, with models of each."
)
def models(directories: tuple[str, ...], as_json: bool, available: bool) -> None:
    """List the models on this machine: in the hub's cache, fetched from elsewhere, and in DIRECTORIES.

    Each of these is a model, or a folder of models; .gguf files are found at any depth.

    Shown are architecture, size of the weights, and whether `kvasir serve` can serve it, with the reason if not.
    """
    if available:
        known = [{"architecture": family.architecture, "models": family.models} for family in _families()]
        wide = max(len(row["architecture"]) for row in known)
        lines = [f"{row['architecture']:<{wide}}  {row['models']}" for row in known]
        click.echo(json.dumps(known, indent=2) if as_json else "\n".join([f"{'ARCHITECTURE':<{wide}}  MODELS", *lines]))
        return
    cache = cache_folder()
    here = local_models(directories, cache, fetched_model.cache_folder())
    if as_json:
        click.echo(json.dumps([asdict(model) for model in here], indent=2))
    elif here:
        click.echo(table(here))
    else:
        click.echo(f"No models in {cache}" + (" nor in the directories given." if directories else "."))
