"""`kvasir replay` on the command line."""

import json

from click.testing import CliRunner

from kvasir_operator.commands.replay import replay

LINE = {"at": 0, "pods": [{"name": "a", "state": {"kv": {"capacity_tokens": 1000, "pinned_tokens": 900}}}]}


def test_decisions_are_printed_as_json_lines(tmp_path):
    file = tmp_path / "readings.jsonl"
    file.write_text(json.dumps(LINE) + "\n")
    result = CliRunner().invoke(replay, [str(file)])
    assert result.exit_code == 0
    assert json.loads(result.output)["replicas"] == 2


def test_standard_input_is_read_and_a_wrong_line_is_named():
    result = CliRunner().invoke(replay, ["-"], input="nothing\n")
    assert result.exit_code == 1
    assert "Error: line 1: " in result.output
