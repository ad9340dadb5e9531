"""docs/cli.md names every command of the runtime and every command of a chat; options say what they do."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import click

from kvasir_api import command
from kvasir_runtime.commands.conversation import HELP

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
COMMANDS = {
    entry.name: entry for entry in entry_points(group=command.GROUP) if entry.value.startswith("kvasir_runtime.")
}


def test_every_command_is_on_the_page():
    assert {"serve", "chat", "bench"} <= set(COMMANDS)
    assert [name for name in COMMANDS if f"`kvasir {name} " not in PAGE] == []


def test_every_command_of_a_chat_is_on_the_page():
    names = re.findall(r"^(/\w+)", HELP, re.MULTILINE)
    assert len(names) > 4
    assert [name for name in names if f"`{name}" not in PAGE] == []


def test_every_option_says_what_it_does():
    silent, options = [], 0
    for name, entry in COMMANDS.items():
        loaded = command.load(entry)
        for option in loaded.get_params(click.Context(loaded)):
            options += option.param_type_name == "option"
            if option.param_type_name == "option" and not option.help:
                silent.append(f"{name} {option.opts[0]}")
    assert options > 100
    assert silent == []
