"""My parts keep the contract: no leak, padding, segments, gradients, every field, FLOPs."""

from lit_transformers.checks.contract import require_contract


def test_my_parts_keep_the_contract() -> None:
    require_contract("my_parts.py")
