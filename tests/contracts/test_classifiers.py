"""Every mixer that sees both ways classifies: it learns, and padding changes nothing that is said of a row."""

from __future__ import annotations

import pytest
import torch
from contract_cases import DIM, HEADS, SHAPE, Case, mixers
from numerics import placed, same

from lit_transformers.batch import ClassLabels, LabelledBatch, LabelledDescription, Vocabulary
from lit_transformers.encodings.positions import SinusoidalConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderConfig
from lit_transformers.tasks.classification import ClassificationConfig
from lit_transformers.training.config import TrainingConfig

VOCABULARY = Vocabulary(size=11, boundary=10, unit="word", byte_lengths=None)
DATA = LabelledDescription(vocabulary=VOCABULARY, length=SHAPE.max_length, labels=ClassLabels(count=3))
LENGTH = 23
pytestmark = pytest.mark.any_device


def rows(lengths: tuple[int, ...]) -> LabelledBatch:
    padding_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    inputs = torch.randint(1, 10, padding_mask.shape).masked_fill(~padding_mask, 0)
    inputs[:, 0] = 10
    count = len(lengths)
    return LabelledBatch(inputs, padding_mask, torch.randint(3, (count,)), None, torch.arange(count), None)


@mixers("bidirectional", encodings="none")
def test_a_row_is_classified_alike_in_any_company(case: Case) -> None:
    """By the mean of a row, which padding would change; by its first position where the mixer is plain attention, for a
    mixer does not know which of its outputs are read."""
    for pooling in ("mean", "first") if case.config == AttentionConfig() else ("mean",):
        check_company(case, pooling)


def check_company(case: Case, pooling: str) -> None:
    torch.manual_seed(0)
    # Positions tell equal symbols apart: among equal scores, rounding would choose the keys that top-k keeps.
    model = EncoderConfig(dim=DIM, heads=HEADS, depth=1, mixer=case.config, dropout=0.0, positions=SinusoidalConfig())
    config = ClassificationConfig.from_dict({"kind": "classification", "pooling": pooling})
    task = placed(config.build(model, DATA, TrainingConfig(device="cpu")).double())
    batch = rows((LENGTH, 9, 14, 1))
    task.training_step(batch, 0)["loss"].backward()
    task.eval()
    with torch.no_grad():
        batched = task.evaluation_output(batch)
        for row, length in enumerate(batch.padding_mask.sum(dim=1).tolist()):
            part = [
                part[row : row + 1] for part in (batch.inputs[:, :length], batch.padding_mask[:, :length], batch.labels)
            ]
            single = LabelledBatch(*part, None, batch.example[row : row + 1], None)
            same(task.evaluation_output(single)[0], batched[row], exact=1e-7)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.heads.parameters())


@pytest.mark.parametrize("evaluation", [{}, {"mixer.scaled": False}], ids=["its own", "changed"])
def test_no_pass_walks_the_modules_of_a_network(evaluation: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk takes as long as some layers read a text alone."""
    model = EncoderConfig(dim=DIM, heads=HEADS, depth=2)
    config = ClassificationConfig.from_dict({"kind": "classification", "evaluation": evaluation})
    task = placed(config.build(model, DATA, TrainingConfig(device="cpu")))
    batch = rows((LENGTH, 9))
    task.eval()
    expected = task.evaluation_output(batch)

    def walk(module: torch.nn.Module, *arguments: object, **options: object) -> None:
        raise AssertionError(f"the modules of a {type(module).__name__} are walked")

    monkeypatch.setattr(torch.nn.Module, "named_modules", walk)
    assert torch.equal(task.evaluation_output(batch), expected)
    task.training_step(batch, 0)
