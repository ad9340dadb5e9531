"""`kvasir pull MODEL`: fetches a model before it is served, and prints where it is."""

import os
from pathlib import Path

import click

from kvasir_api import names
from kvasir_api.forecast import readable
from kvasir_api.option_parser import click_options
from kvasir_api.options import ServeOptions
from kvasir_runtime import source
from kvasir_runtime.errors import StartError
from kvasir_runtime.fetch.shared_cache import RecordedArrival, Recorder
from kvasir_runtime.server.console import Console


def _pull(model: tuple[str, ...], revision: str, record: Path | None) -> None:
    """Fetch each MODEL into the cache of its kind, and print the folder.

    MODEL is a name on the hub, or a uri of a bucket, a registry or an archive. What is there already is not fetched
    again, a broken download goes on where it was, and every file is compared with the stated checksum.

    \b
      kvasir pull Qwen/Qwen3-0.6B
      kvasir pull hf://org/name@v1.0
      kvasir pull s3://bucket/models/qwen3
      kvasir pull oci://registry.example/models/qwen3:v1
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # there is one here
    console = Console("text")

    def show(done_bytes: int, total_bytes: int) -> None:
        fraction = done_bytes / total_bytes if total_bytes else 1.0
        console.show("downloading", fraction, message=f"{readable(done_bytes)} of {readable(total_bytes)}")

    def fetched(name: str) -> Path:
        if record is None:
            return source.resolve(name, revision, show)
        recorder = Recorder(record, name)

        def on_bytes(done_bytes: int, total_bytes: int) -> None:
            recorder.progress(done_bytes, total_bytes)
            show(done_bytes, total_bytes)

        folder = source.resolve(name, revision, on_bytes, RecordedArrival(recorder))
        try:
            recorder.whole(folder)
        except (OSError, ValueError) as error:
            raise click.ClickException(f"{record} does not take the record of {name}: {error}") from error
        return folder

    try:
        folders = [fetched(name) for name in model]
    except StartError as error:
        raise click.ClickException(str(error).removeprefix(names.MODEL_UNAVAILABLE)) from error
    finally:
        console.close()
    for folder in folders:
        click.echo(folder)


pull = click.Command(
    "pull",
    callback=_pull,
    help=_pull.__doc__,
    short_help="Fetch a model from the hub, a bucket, a registry or a server.",
    params=[
        click.Argument(["model"], nargs=-1, required=True),
        click.Option(
            ["--record"],
            type=click.Path(path_type=Path),
            help="Directory of the cache, for processes that only read it: what was fetched is recorded there.",
        ),
        *click_options(ServeOptions, skip=frozenset(ServeOptions.model_fields) - {"revision"}),
    ],
)
