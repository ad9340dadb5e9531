"""The command `kvasir` in installations that hold only some of its packages."""

from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

from kvasir_api import command


def entry(value):
    return EntryPoint(name="serve", value=value, group=command.GROUP)


def test_command_of_an_absent_package_says_what_is_missing():
    absent = command.load(entry("no_such_package.commands:serve"))
    result = CliRunner().invoke(absent, ["model", "--port", "1", "--help"])
    assert result.exit_code == 1
    assert result.output == "Error: Not in this installation: there is no module no_such_package.\n"


def test_what_is_no_command_is_not_taken_for_one():
    assert command.load(entry("json:dumps")) is None


def test_installed_command_is_loaded():
    assert command.load(entry("kvasir_api.command:main")) is command.main


def test_help_lists_what_is_not_installed_too():
    result = CliRunner().invoke(command.main, ["--help"])
    assert result.exit_code == 0
    assert "serve" in result.output


@click.command("serve")
@click.argument("model")
@click.option("--max-model-len", type=click.IntRange(1))
@click.option("--otlp-sample-percent")
def _serve(**_values):
    raise click.ClickException("The model cannot be found.\nIt is gone.")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["serve", "m"], 1, "kvasir: the model cannot be found. It is gone"),
        (["serve"], 2, "kvasir: missing argument 'MODEL' (kvasir serve --help lists what there is)"),
        (
            ["serve", "m", "--max-model-length", "5"],
            2,
            (
                "kvasir: no such option '--max-model-length'; did you mean --max-model-len?"
                " (kvasir serve --help lists what there is)"
            ),
        ),
        (
            ["serve", "m", "--tensor-parallel-size", "2"],
            2,
            "kvasir: no such option '--tensor-parallel-size' (kvasir serve --help lists what there is)",
        ),
        (
            ["serve", "m", "--max-model-len", "0"],
            2,
            "kvasir: invalid value for '--max-model-len': 0 is not in the range x>=1",
        ),
        (["serv"], 2, "kvasir: no such command 'serv'; did you mean serve? (kvasir --help lists what there is)"),
        (["xyz"], 2, "kvasir: no such command 'xyz' (kvasir --help lists what there is)"),
    ],
)
def test_errors_of_all_commands_have_one_style(arguments, code, line):
    result = CliRunner().invoke(command.PlainGroup("kvasir", commands=[_serve]), arguments)
    assert (result.exit_code, result.stderr, result.stdout) == (code, line + "\n", "")


def test_a_command_that_is_not_imported_yet_is_suggested():
    result = CliRunner().invoke(command.main, ["serv"])
    assert result.stderr.startswith("kvasir: no such command 'serv'; did you mean serve?")
