"""`kvasir why` on the command line, as far as it needs no cluster; what it prints is tested with status/explanation."""

import pytest
from click.testing import CliRunner

from kvasir_operator.commands.why import why


@pytest.mark.parametrize("target", ["tiny", "service/", "node/a", "request/"])
def test_a_target_that_is_none_is_refused(target):
    result = CliRunner().invoke(why, [target])
    assert result.exit_code == 2
    assert "expected service/NAME, pod/NAME or request/ID" in result.output


def test_a_configuration_that_cannot_be_used_is_one_sentence(tmp_path):
    result = CliRunner().invoke(why, ["service/tiny", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert result.output.startswith("Error: no usable Kubernetes configuration")
