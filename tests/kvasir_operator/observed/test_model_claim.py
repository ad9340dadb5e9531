"""Whether a claim has its volume, and whether nodes may share it."""

import pytest

from kvasir_operator.observed.model_claim import ModelClaim, model_claim


@pytest.mark.parametrize(
    ("spec", "status", "want"),
    [
        (["ReadWriteOnce"], {"phase": "Pending"}, ModelClaim(bound=False, of_one_node=True)),
        (["ReadWriteOnce"], {"phase": "Bound"}, ModelClaim(of_one_node=True)),
        (["ReadWriteOncePod"], {"phase": "Bound"}, ModelClaim(of_one_node=True)),
        (["ReadOnlyMany"], {"phase": "Bound"}, ModelClaim()),
        (["ReadWriteOnce"], {"phase": "Bound", "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}, ModelClaim()),
        ([], {"phase": "Bound"}, ModelClaim()),
    ],
)
def test_what_the_volume_allows_counts_before_what_the_claim_requests(spec, status, want):
    assert model_claim({"spec": {"accessModes": spec}, "status": status}) == want
