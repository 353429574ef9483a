"""Texts that runs wrote are scored as by sacreBLEU and rouge_score, and the scores become columns of the documents."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from study_on_disk import BYTES, key_of, name_of, product_arms, write_plan, write_run

from reports.judge.comparisons import compare
from reports.judge.findings import Findings
from reports.read.measurements import DocumentLosses
from reports.read.outputs import BLEU_COLUMNS, Output, bleu, bleu_columns, paired_tests, rouge_columns, with_outputs
from reports.read.study import load_study, read_run
from reports.show.sections import all_tables

ON, _, OFF, _ = map(name_of, product_arms())
TEXT = "the cat sat on a mat and a dog ran over some big small houses while we were out in green trees"
WORDS = TEXT.split()


def sentences(seed: int, wrong: float, count: int = 60) -> tuple[list[str], list[str]]:
    """Returns references, and hypotheses in which the share ``wrong`` of their words is replaced."""
    generator = random.Random(7)
    references = [generator.choices(WORDS, k=generator.randint(4, 20)) for _ in range(count)]
    generator.seed(seed)
    hypotheses = [
        [generator.choice(WORDS) if generator.random() < wrong else word for word in line] for line in references
    ]
    return [" ".join(line) for line in references], [" ".join(line) for line in hypotheses]


def documents(references: list[str], hypotheses: list[str]) -> DocumentLosses:
    outputs = [
        Output(id=number, hypothesis=hypothesis, references=[reference])
        for number, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True))
    ]
    ones = np.ones(len(hypotheses))
    return DocumentLosses(tuple(f"{i} line" for i in range(len(hypotheses))), ones, ones, ones, bleu_columns(outputs))


@pytest.mark.slow
def test_paired_tests_are_those_of_the_command_line(tmp_path: Path) -> None:
    references, arm = sentences(1, 0.2)
    _, against = sentences(2, 0.25)
    for name, lines in (("references", references), ("arm", arm), ("against", against)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    result = paired_tests(documents(references, arm), documents(references, against))
    for option, p in (("--paired-bs", result.p_bootstrap), ("--paired-ar", result.p_randomization)):
        command = [sys.executable, "-m", "sacrebleu", "references", "-i", "against", "arm", "-m", "bleu", option]
        process = subprocess.run(
            [*command, "--format", "json"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
        )
        baseline, system = json.loads(process.stdout)
        assert (result.against, result.score) == (baseline["BLEU"]["score"], system["BLEU"]["score"])
        assert p == system["BLEU"]["p_value"]
    assert result.signature.startswith("nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert result.signature.endswith(", and ar:10000")


@pytest.mark.parametrize(("count", "wrong"), [(60, 0.25), (6, 0.3), (60, 0.2)])
def test_p_values_are_those_of_sacrebleu_also_where_most_trials_tie(count: int, wrong: float) -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    references, arm = sentences(1, 0.2, count)
    against = sentences(1 if wrong == 0.2 else 2, wrong, count)[1]
    result = paired_tests(documents(references, arm), documents(references, against))
    for kind, p in (("bs", result.p_bootstrap), ("ar", result.p_randomization)):
        systems: list[tuple[str, Sequence[str]]] = [("against", against), ("arm", arm)]
        _, scores = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, kind)()
        assert p == scores["BLEU"][1].p_value  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("count", [1, 3, 60])
def test_bleu_of_totals_is_sacrebleu_of_the_corpus_smoothed_alike(wrong: float, count: int) -> None:
    from sacrebleu import corpus_bleu

    references, hypotheses = sentences(3, wrong, count)
    hypotheses[0] = " ".join(hypotheses[0].split()[:3])
    columns = bleu_columns(
        [Output(id=0, hypothesis=h, references=[r]) for h, r in zip(hypotheses, references, strict=True)]
    )
    totals = np.array([columns[name].sum() for name in BLEU_COLUMNS])
    assert float(bleu(totals)) == pytest.approx(corpus_bleu(hypotheses, [references]).score, rel=1e-12, abs=1e-9)


def test_the_best_of_several_references_counts_and_their_number_may_differ() -> None:
    from sacrebleu import corpus_bleu

    hypotheses = ["a cat sat on the mat", "the dog ran over a house"]
    first_references, second_references = (
        ["the cat sat on a mat", "the dog ran over a house"],
        ["a cat sat on the mat", None],
    )
    columns = bleu_columns(
        [
            Output(id=0, hypothesis=hypotheses[0], references=[first_references[0], str(second_references[0])]),
            Output(id=1, hypothesis=hypotheses[1], references=[first_references[1]]),
        ]
    )
    totals = np.array([columns[name].sum() for name in BLEU_COLUMNS])
    assert float(bleu(totals)) == pytest.approx(corpus_bleu(hypotheses, [first_references, second_references]).score)  # type: ignore[list-item]


def test_rouge_is_a_hundred_for_the_reference_itself_and_a_share_for_a_part() -> None:
    columns = rouge_columns(
        [
            Output(id=0, hypothesis="the cat sat", references=["the cat sat"]),
            Output(id=1, hypothesis="the cat", references=["the cat sat on it", "a dog"]),
        ]
    )
    assert columns["rouge1"].tolist() == pytest.approx([100.0, 100 * 2 * 2 / (2 + 5)], rel=1e-6)
    assert columns["rougeL"][0] == 100.0


def write_outputs(path: Path, references: list[str], hypotheses: list[str]) -> None:
    lines = [
        json.dumps({"id": number, "hypothesis": hypothesis, "references": [reference]})
        for number, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True))
    ]
    path.write_text("\n".join(lines) + "\n")


def write_translations(runs: Path) -> None:
    """Writes two arms of three seeds and ten documents; the second arm gets more words wrong."""
    from sacrebleu import corpus_bleu

    write_plan(
        runs, product_arms()[::2], design="explicit", metric={"name": "val/bleu", "goal": "maximize", "label": "BLEU"}
    )
    for arm, wrong in ((ON, 0.1), (OFF, 0.5)):
        for seed in range(3):
            references, hypotheses = sentences(seed, wrong, len(BYTES))
            score = corpus_bleu(hypotheses, [references]).score
            write_run(runs, arm, seed, BYTES, metrics={"val/bleu": score})
            write_outputs(runs / key_of(arm, seed) / "outputs.jsonl", references, hypotheses)


def test_words_are_those_of_the_signature_that_a_run_was_scored_by(tmp_path: Path) -> None:
    """A run of Chinese that was scored by 13a, as of old, is read by 13a."""
    texts = ["他昨天买了三本新书。"] * len(BYTES)
    for tok, expected in (("zh", 20), ("13a", 0)):
        scores = {"bleu": f"case:mixed|eff:no|tok:{tok}|smooth:exp|version:2.5.1", "rouge": f"F-measure|tok:{tok}"}
        write_run(tmp_path / tok, ON, 0, BYTES, metrics={"val/bleu": 1.0}, protocol={"scores": scores})
        folder, notes = tmp_path / tok / key_of(ON, 0), list[str]()
        write_outputs(folder / "outputs.jsonl", texts, [text.replace("书", "报") for text in texts])
        read = read_run(folder, notes)
        assert not notes and read.measurements.documents is not None
        columns = read.measurements.documents.others
        assert (bleu(np.array([columns[name].sum() for name in BLEU_COLUMNS])) > expected) == (tok == "zh")
        tests = paired_tests(read.measurements.documents, read.measurements.documents, tok)
        assert f"|tok:{tok}|" in tests.signature


def test_a_study_of_translations_gets_intervals_over_documents_and_sacrebleus_tests_beside(tmp_path: Path) -> None:
    write_translations(tmp_path)
    study, notes = load_study(tmp_path, "xl_recurrence"), list[str]()
    (comparison,) = compare(study, notes)
    assert not notes and comparison.documents == len(BYTES) and comparison.verdict == "worse"
    table = next(table for table in all_tables(Findings(study, (comparison,))) if table.name == "bleu_tests")
    assert [row[1].value for row in table.rows] == ["0", "1", "2"]
    assert all(isinstance(row[4].value, float) and row[4].value < 0.05 for row in table.rows)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"id": 0, "hypothesis": "a", "references": ["a"]}\n', "document 1 is missing"),
        ('{"id": 0, "hypothesis": "a", "references": []}\n', "line 1 is no output"),
        ("{", "line 1 is no output"),
        ('{"id": 0, "hypothesis": "a", "references": ["a"]}\n' * 2, "line 2: document 0 is there twice"),
    ],
)
def test_outputs_that_are_damaged_or_incomplete_are_noted_and_not_used(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text(text)
    losses = documents(*sentences(1, 0.1, 2))
    losses_without_outputs, notes = DocumentLosses(losses.names, losses.nats, losses.tokens, losses.bytes), list[str]()
    assert with_outputs(losses_without_outputs, path, ["val/bleu"], notes) is losses_without_outputs
    assert told in notes[0]


def test_runs_of_other_metrics_need_no_outputs(tmp_path: Path) -> None:
    losses, notes = documents(*sentences(1, 0.1, 2)), list[str]()
    assert with_outputs(losses, tmp_path / "none.jsonl", ["val/bpb"], notes) is losses and not notes
