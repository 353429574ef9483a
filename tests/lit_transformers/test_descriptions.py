"""A description of data is of one kind; a part that needs another kind is refused with the place and the way out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from datamodules import DATA
from datamodules.core.tokenizers import Bytes, DecodedText
from lit_transformers.batch import (
    ClassLabels,
    DataDescription,
    LabelledDescription,
    LanguageDescription,
    MixedDescription,
    NumberLabels,
    PairDescription,
    RetrievalDescription,
    RowDescription,
    StringDescription,
    Vocabulary,
)
from lit_transformers.config import ConfigError
from lit_transformers.models import MODELS
from lit_transformers.tasks import TASKS, ClassificationConfig, RegressionConfig, Seq2SeqConfig
from lit_transformers.training.config import TrainingConfig

KINDS: list[type[DataDescription]] = [
    LanguageDescription,
    StringDescription,
    LabelledDescription,
    MixedDescription,
    PairDescription,
    RetrievalDescription,
    RowDescription,
]
VOCABULARY = Vocabulary(size=11, boundary=10, unit="word", byte_lengths=None)
OF_ENCODERS = (
    "classification",
    "regression",
    "tagging",
    "multi_task",
    "multi_label",
    "multiple_choice",
    "retrieval",
    "masked_lm",
    "replaced_tokens",
    "contrastive",
    "permutation_lm",
    "bilm",
)
READERS = {"seq2seq": "encoder_decoder"} | dict.fromkeys(OF_ENCODERS, "encoder")
SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "depth": 1}
FIELDS: dict[str, dict[str, Any]] = {"permutation_lm": {"query_stream": "learned"}, "bilm": {"causal": True}}
"""Further fields of the model that a task needs."""


def described(kind: type[DataDescription]) -> DataDescription:
    return kind.for_probe(VOCABULARY, 9)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("task", TASKS)
def test_a_task_builds_on_the_kind_that_it_reads_and_refuses_the_others(task: str, kind: type[DataDescription]) -> None:
    fields = SMALL | FIELDS.get(task, {})
    config, model = TASKS[task](), MODELS[READERS.get(task, "language_model")](**fields)
    if kind is config.reads:
        data = config.probe_data(VOCABULARY, 9)
        assert config.build(model, data, TrainingConfig(device="cpu")).data == data
        return
    with pytest.raises(ConfigError, match=f"^data: these data .*{task}.*; set data to ") as refusal:
        config.build(model, described(kind), TrainingConfig(device="cpu"))
    remedy = str(refusal.value).rpartition(" ")[-1]
    assert DATA[remedy].describes is config.reads


@pytest.mark.parametrize("config", [Seq2SeqConfig(), ClassificationConfig()], ids=lambda config: config.kind)
def test_a_cost_and_a_random_batch_of_data_of_another_kind_are_refused(config: Any) -> None:
    model = MODELS[READERS[config.kind]](**SMALL)
    with pytest.raises(ConfigError, match=r"^data: these data have no (sources|labels)"):
        config.cost(model, described(LanguageDescription))
    with pytest.raises(ConfigError, match=r"^data: these data have no (sources|labels)"):
        config.random_batch(described(StringDescription))


def test_labels_are_classes_or_numbers() -> None:
    model = MODELS["encoder"](**SMALL)
    classes = LabelledDescription(vocabulary=VOCABULARY, length=9, labels=ClassLabels(count=5))
    numbers = LabelledDescription(vocabulary=VOCABULARY, length=9, labels=NumberLabels())
    assert ClassificationConfig().head().outputs(classes) == 5 and RegressionConfig().head().outputs(numbers) == 1
    assert set(ClassificationConfig().random_batch(classes).labels.tolist()) <= {*range(5)}
    assert not RegressionConfig().random_batch(numbers).labels.frac().eq(0).any()
    with pytest.raises(ConfigError, match=r"^task: classification needs classes, .* set task=regression"):
        ClassificationConfig().cost(model, numbers)


@pytest.mark.parametrize("kind", DATA)
def test_a_checkpoint_of_data_of_another_kind_is_refused_by_name(kind: str) -> None:
    """As where ``evaluate`` is given data of another kind than the checkpoint was trained on."""
    config = DATA[kind]()
    for stored in {description.kind for description in KINDS} - {config.describes.kind}:
        refusal = f"data: the checkpoint describes its data as {stored}, not as {config.describes.kind}; set data back"
        with pytest.raises(ConfigError, match=f"^{re.escape(refusal)}"):
            config.description_from({"description": stored})
    with pytest.raises(ConfigError, match="describes its data as no kind"):
        config.description_from({})


PAIRS = """
import json, sys
from lit_transformers.batch import DataDescription
plain = json.loads(sys.argv[1])
assert "datamodules" not in sys.modules
print(DataDescription.from_dict(plain).detokenize([104, 105]))
"""


def test_a_checkpoint_names_what_writes_its_texts_and_nothing_else_is_imported(tmp_path: Path) -> None:
    """In a script that has imported no data set; one from before names it by a kind."""
    described = PairDescription(
        vocabulary=Bytes().vocabulary,
        length=9,
        source=Bytes().vocabulary,
        source_length=9,
        detokenize=DecodedText(Bytes()),
    )
    plain = json.loads(json.dumps(described.to_dict()))
    assert DataDescription.from_dict(plain).to_dict() == described.to_dict()
    former = {"kind": "decoded", "tokenizer": plain["detokenize"]["tokenizer"]}
    for detokenize in (plain["detokenize"], former):
        argument = json.dumps(plain | {"detokenize": detokenize})
        output = subprocess.run([sys.executable, "-c", PAIRS, argument], capture_output=True, text=True, timeout=120)
        assert output.stdout == "hi\n", output.stderr
    (tmp_path / "strange.py").write_text("raise SystemExit('imported')")
    for path, reason in (
        ("strange.Writer", "of a module that you have not allowed"),
        ("datamodules.core.documents.Shard", "is no Detokenizer"),
        ("lit_transformers.trust.Path", "of a module that you have not allowed"),
    ):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match=f"^detokenize: names .*{reason}"):
            patch.syspath_prepend(tmp_path)
            DataDescription.from_dict(plain | {"detokenize": {"class_path": path}})
    with pytest.raises(ConfigError, match="no class of the kind 'spelled' is known"):
        DataDescription.from_dict(plain | {"detokenize": {"kind": "spelled"}})
