"""The command `kvasir`: it collects its subcommands from the entry-point group `kvasir.commands`.

A package that is not installed brings no subcommand, so the runtime image has `serve` and the operator image `operator`.
Imports no declaration of options, so that a command can begin what takes long before it imports its own.
"""

import difflib
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import click

from kvasir_api import __version__, names

GROUP = "kvasir.commands"
NEAR: Final = 0.8
"""Likeness, 0..1, from which on a name is suggested for one that does not exist."""
_UNKNOWN: Final = (click.exceptions.NoSuchOption, click.exceptions.NoSuchCommand)


class PlainGroup(click.Group):
    """Commands whose errors are one line each on standard error, in one style: `kvasir: what is wrong`."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, but for how errors are written."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            click.echo(error_line(error), err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo(f"{names.REFUSAL_PREFIX}stopped", err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def error_line(error: click.ClickException) -> str:
    """What is wrong, in one line; for an option or a command that does not exist also what may be meant."""
    said = " ".join((error.message if isinstance(error, _UNKNOWN) else error.format_message()).split()).rstrip(".")
    if said[:1].isupper() and said[1:2].islower():
        said = said[0].lower() + said[1:]
    if isinstance(error, _UNKNOWN):
        given = getattr(error, "option_name", "") or getattr(error, "command_name", "")
        near = difflib.get_close_matches(given, _others(error), n=1, cutoff=NEAR)
        said += f"; did you mean {near[0]}?" if near else ""
    if isinstance(error, (*_UNKNOWN, click.MissingParameter)) and error.ctx is not None:
        said += f" ({error.ctx.command_path} --help lists what there is)"
    return names.REFUSAL_PREFIX + said


def _others(error: click.UsageError) -> Iterable[str]:
    """Names that exist. A group that imports its commands when they are used lists them without."""
    command = error.ctx.command if error.ctx is not None else None
    if error.ctx is not None and isinstance(command, click.Group):
        return command.list_commands(error.ctx)
    return getattr(error, "possibilities", None) or ()


class Commands(PlainGroup):
    """Subcommands loaded when they are asked for, so that `kvasir local` never imports torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of the installed subcommands."""
        return sorted(_entries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The subcommand, imported now; None when there is none of that name."""
        entry = _entries().get(cmd_name)
        return load(entry) if entry else None


def load(entry: EntryPoint) -> click.Command | None:
    """The command of an entry point; where its extra is not installed, one that says so; None when it is no command."""
    try:
        command = entry.load()
    except ModuleNotFoundError as error:
        return _absent(entry.name, error.name or str(error))
    return command if isinstance(command, click.Command) else None


def _absent(name: str, module: str) -> click.Command:
    sentence = f"Not in this installation: there is no module {module}."

    def refuse() -> None:
        raise click.ClickException(sentence)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return click.Command(name, callback=refuse, help=sentence, context_settings=settings)


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="kvasir")
def main() -> None:
    """Kvasir serves large language models: one engine, on a laptop or on Kubernetes."""
