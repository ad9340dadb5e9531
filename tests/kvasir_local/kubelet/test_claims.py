"""Whose network is whose: nothing of another cluster is removed, and what is this one's is found without its record."""

from pathlib import Path

import pytest

from kvasir_local.kubelet import claims
from kvasir_local.kubelet.claims import NetworkClaim

A, B = Path("/a/.kvasir"), Path("/b/.kvasir")


def claim(root, index, state_dir, boot_id="now"):
    claims.write(root, index, NetworkClaim(state_dir=str(state_dir), boot_id=boot_id))


def test_a_directory_owns_what_it_has_claimed_whatever_its_record_says(tmp_path):
    claim(tmp_path, 0, B)
    claim(tmp_path, 1, A)
    claim(tmp_path, 12, A)
    assert claims.owned(tmp_path, A) == [1, 12]


def test_an_old_cluster_owns_nothing_where_a_later_one_has_its_index(tmp_path):
    claim(tmp_path, 0, A, "before the reboot")
    assert claims.present(tmp_path, "now") == set()
    claim(tmp_path, 0, B)
    assert claims.owned(tmp_path, A) == []
    assert claims.present(tmp_path, "now") == {0}


@pytest.mark.parametrize("content", ["", "{}", "\x00"])
def test_a_file_that_is_no_claim_is_none(tmp_path, content):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "claim.json").write_text(content)
    assert claims.present(tmp_path, "now") == set()


def test_without_kubelets_there_is_none(tmp_path):
    assert claims.owned(tmp_path / "absent", A) == []
