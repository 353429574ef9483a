"""Whether a gate fails while a fault is planted: the gates of every published model that uses the faulty file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["NONE_FAILED", "failed_gate", "models_by_file"]

NONE_FAILED = "none"


def models_by_file() -> dict[str, list[dict[str, Any]]]:
    """Returns, for every file of the library, the models of the studies whose numbers depend on it, as plain data.

    Of the models that are made of the same kinds of parts there is one.
    """
    from ablations.catalog import find, load, names
    from lit_transformers.runs.code import modules_of, modules_on_path

    models = {}
    for name in names():
        for config in load(find(name)).resolve("demo").configs.values():
            models.setdefault(frozenset(modules_of(config.model)), config.model)
    files: dict[str, list[dict[str, Any]]] = {}
    for model in models.values():
        for module in modules_on_path(model, ()):
            files.setdefault(f"{module.replace('.', '/')}.py", []).append(model.to_dict())
    return files


def failed_gate(models: Iterable[Mapping[str, Any]]) -> str:
    """Returns the name of the first gate that fails for one of the models, or NONE_FAILED."""
    import torch

    from lit_transformers.gates.gates import check
    from lit_transformers.models.model import ModelConfig

    torch.set_num_threads(1)
    for model in models:
        for gate in check(ModelConfig.from_dict(model)):
            if not gate.passed:
                return gate.name
    return NONE_FAILED
