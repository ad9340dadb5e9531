"""docs/cli.md names every command of the runtime and every command of a chat; options say what they do."""

import re
from pathlib import Path

from kvasir_runtime.__main__ import main
from kvasir_runtime.commands.conversation import HELP

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_every_command_is_on_the_page():
    assert [name for name in main.commands if f"`kvasir {name} " not in PAGE] == []


def test_every_command_of_a_chat_is_on_the_page():
    names = re.findall(r"^(/\w+)", HELP, re.MULTILINE)
    assert len(names) > 4
    assert [name for name in names if f"`{name}" not in PAGE] == []


def test_every_option_says_what_it_does():
    silent = [
        f"{command.name} {option.opts[0]}"
        for command in main.commands.values()
        for option in command.params
        if option.param_type_name == "option" and not option.help
    ]
    assert silent == []
