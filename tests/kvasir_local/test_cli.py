"""Whose state directory `down` touches."""

import os

import pytest

from kvasir_local import cli

ME = os.getuid() + 1
"""A user that is not root, whoever runs the tests."""


def test_a_directory_of_another_user_is_left_alone(tmp_path):
    assert cli.is_foreign(tmp_path, ME)


def test_root_stops_every_cluster(tmp_path):
    assert not cli.is_foreign(tmp_path, 0)


def test_a_directory_that_is_not_there_is_nobodys(tmp_path):
    assert not cli.is_foreign(tmp_path / "absent", ME)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to another user")
def test_a_cluster_of_root_in_a_directory_of_the_caller_is_left_alone(tmp_path):
    os.chown(tmp_path, ME, -1)
    assert not cli.is_foreign(tmp_path, ME)
    (tmp_path / "lock").touch()
    assert cli.is_foreign(tmp_path, ME)
