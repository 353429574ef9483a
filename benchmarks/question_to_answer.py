"""Measures the path from a question to its answer: a retriever finds passages, and readers answer from them.

    python -m benchmarks.question_to_answer [--steps 150] [--apart 5] [--questions 240] [--exhaustive 25] [--tiny]
    [--retriever FILE] [--reader FILE --reader FILE] [--json NAME]

Trains two readers (MiniLM below LIT_WEIGHTS as a ``deformer``) on the English questions of xquad (below LIT_DATA) in
four of five folds of passages: the first with all layers on whole rows, the second with ``--apart`` lower layers that
read questions and passages apart. The retriever is MiniLM as released; ``--retriever-steps`` trains it on the same
questions. The passages are those of all folds, then long lines of WikiText-2 up to ``--passages``. Held-out questions
are answered from four choices of passages: the right one (gold), the first and the first five of the retriever, and all
passages (for ``--exhaustive`` questions). Prints four tables:

- Retriever: the share of questions whose right passage is the first, or among the first five, in percent.
- Answers: exact match and F1, by reader and passages. The errors of exact match, in percent of all questions, by the
  stage that fails: the right passage is not read; the answer is from another passage; the span is wrong.
- Differences of F1 on the same questions, with a 95 % interval by Student's t over passages, since questions on a
  passage are not independent.
- Milliseconds a question by stage, in batches, from one pass. Readers with layers apart read the states of passages
  from a cache; the time to write it is given per passage.

xquad: arXiv:1910.11856. A retriever and a reader: DrQA (arXiv:1704.00051), DPR (arXiv:2004.04906). Layers apart:
DeFormer (arXiv:2005.00697).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console

from ablations.fine_tuning import READER, RETRIEVAL
from benchmarks.hardware import JSON_HELP, describe, save
from benchmarks.reading import PassageQuestion, questions_of, shown, wikitext_lines, written
from datamodules import BytesConfig
from lit_transformers.answer_scores import AnswerScores, answer_scores
from lit_transformers.inference.answer_passages import PassageAnswerPredictor
from lit_transformers.inference.encode_passages import encode_passages, passage_reader_of
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.passage_states import PassageStates
from lit_transformers.inference.passages import PassageFinder, passage_finder_of, passages_in
from lit_transformers.inference.predict import predictor_of
from lit_transformers.inference.predict_answers import AnswerPredictor
from lit_transformers.models import DeFormerConfig
from lit_transformers.runs import RunConfig, fit, load
from reports.judge.statistics import estimate

TOP = 5
WAYS = ("gold", "top 1", f"top {TOP}", "all")
ERRORS = ("not_found", "other_passage", "wrong_span")
"""The stages that fail, in the order of the path."""
TINY_MODEL: Mapping[str, Any] = {
    "dim": 16,
    "heads": 2,
    "depth": 2,
    "positions": "learned",
    "segments": 2,
    "initial_std": 0.3,
}
NAMES = ("ada", "bob", "eve", "kim", "leo", "mia", "ned", "zoe")


class ReadAnswer(NamedTuple):
    """An answer. passage: the number of the passage that holds it; None for no answer."""

    text: str
    passage: int | None


Candidates = Sequence[int] | None
"""The numbers of the passages that are read for a question; None: all passages."""
AnswerReader = Callable[[Sequence[str], Sequence[Candidates]], list[ReadAnswer]]
"""Returns the answer to each question from its passages."""


class ScoredAnswers(AnswerPredictor):
    """Answers as ``predict`` does, with the score of each answer: the largest sum of two logits over all windows."""

    def prediction(self, texts: tuple[str, ...], outputs: Sequence[Sequence[float]]) -> Mapping[str, Any]:
        return {**super().prediction(texts, outputs), "score": max(output[0] for output in outputs)}


class Given:
    """Gives the passages of each question to a predictor in place of a retriever."""

    def __init__(self, candidates: Mapping[str, Sequence[int]]) -> None:
        self.candidates = candidates

    def nearest_of(self, questions: Sequence[str]) -> list[list[tuple[int, float]]]:
        return [[(passage, 0.0) for passage in self.candidates[question]] for question in questions]


class HeldOut(NamedTuple):
    """The held-out questions, the number of the right passage of each, and the texts of all passages."""

    questions: Sequence[PassageQuestion]
    gold: Sequence[int]
    passages: Sequence[str]


class Result(NamedTuple):
    """The answers of a reader from a choice of passages. numbers: of the questions. scores: of each answer. errors: the
    stage that fails, None for an answer that is right. seconds: of all questions."""

    apart: int
    way: str
    numbers: Sequence[int]
    scores: Sequence[AnswerScores]
    errors: Sequence[str | None]
    seconds: float

    @property
    def row(self) -> dict[str, Any]:
        match, f1 = (mean(column) for column in zip(*self.scores, strict=True))
        shares = {error: 100 * self.errors.count(error) / len(self.errors) for error in ERRORS}
        counted = {"k": self.apart, "passages": self.way, "questions": len(self.numbers)}
        return {**counted, "exact_match": match, "f1": f1, **shares}


def reader_config(apart: int, steps: int, fold: int, tiny: Path | None) -> RunConfig:
    """Returns the config of a reader. tiny: a file of questions for a small network; None for MiniLM on xquad."""
    changes = {"training.steps": steps, "training.schedule.warmup": max(1, steps // 10), "seed": fold}
    config = READER.override({"model.apart": apart, "data.seed": fold, **changes})
    if tiny is None:
        return config
    source = {"path": str(tiny), "language": None, "tokenizer": BytesConfig(), "length": 64, "stride": 24}
    changes = {f"data.source.{name}": value for name, value in {**source, "question_width": 24}.items()}
    model = DeFormerConfig.from_dict({**TINY_MODEL, "kind": "deformer", "apart": apart})
    return config.override({"model": model, "start": None, **changes})


def retriever_config(questions: Path, steps: int, tiny: bool) -> RunConfig:
    """Returns the config of a retriever. questions: a folder with pairs of questions and passages."""
    source = {"kind": "records", "path": str(questions), "split_by": "target"}
    changes = {"data.source": source, "data.evaluation.split": "validation", "training.steps": steps}
    config = RETRIEVAL.override(changes | {"training.optimizer.learning_rate": 2e-5, "start": READER.start})
    small = {"model": {**TINY_MODEL, "kind": "encoder"}, "start": None, "data.tokenizer": BytesConfig()}
    return config.override(small) if tiny else config


def write_tiny(path: Path) -> None:
    """Writes questions on passages with words in the place of MiniLM's data."""
    records = []
    for number, name in enumerate(NAMES):
        context = f"{name} has {number} cats. " + f"{NAMES[number - 1]} has {2 * number} dogs."
        answers = [{"text": str(number), "answer_start": len(name) + 5}]
        records += [
            {"question": f"{what} of {name}?", "context": context, "answers": answers} for what in ("cats", "n")
        ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def trained(config: RunConfig, folder: Path) -> Path:
    fit(config, folder)
    return folder / "checkpoint.ckpt"


def write_pairs(config: RunConfig, folder: Path) -> Path:
    """Writes the questions and passages of training and of validation as pairs for a retriever."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        pairs = ({"source": pair.text, "target": pair.passage} for pair in questions_of(config, split))
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    return folder


def held_out_of(config: RunConfig, questions: int, passages: int) -> HeldOut:
    """Returns the held-out questions, and passages: those of xquad, then lines of WikiText-2."""
    every, others = (questions_of(config, split) for split in ("validation", "train"))
    own = dict.fromkeys(question.passage for question in (*every, *others))
    more = wikitext_lines() if passages > len(own) else iter(())
    texts = [*islice(dict.fromkeys(chain(own, more)), max(passages, len(own)))]
    numbers = {text: number for number, text in enumerate(texts)}
    chosen = [every[place] for place in evenly(len(every), questions)]
    return HeldOut(chosen, [numbers[question.passage] for question in chosen], texts)


def evenly(count: int, most: int) -> list[int]:
    """Returns at most ``most`` of the numbers below ``count``, at about equal distances."""
    return sorted({round(number) for number in np.linspace(0, count - 1, min(count, most))})


def apart_of(config: RunConfig) -> int:
    return config.model.apart if isinstance(config.model, DeFormerConfig) else 0


def config_of_readers(checkpoints: Sequence[Path]) -> RunConfig:
    """Returns the config of the first of several readers. Raises BadParameter if their results cannot be compared."""
    configs = [load(checkpoint)[1] for checkpoint in checkpoints]
    if any((config.data.to_dict(), config.seed) != (configs[0].data.to_dict(), configs[0].seed) for config in configs):
        raise typer.BadParameter("the runs hold out different questions", param_hint="--reader")
    if len({apart_of(config) for config in configs}) < len(configs):
        raise typer.BadParameter("two runs have the same number of layers apart", param_hint="--reader")
    return configs[0]


def row_reader(checkpoint: Path, passages: Sequence[str]) -> AnswerReader:
    """Returns a reader whose layers all read whole rows."""
    predictor = predictor_of(checkpoint, LineOptions(), "json")
    assert isinstance(predictor, AnswerPredictor)
    reader = ScoredAnswers(predictor.task, predictor.windows, LineOptions(), "json")

    def read(questions: Sequence[str], candidates: Sequence[Candidates]) -> list[ReadAnswer]:
        chosen = [range(len(passages)) if own is None else sorted(own) for own in candidates]
        rows = ((question, number) for question, own in zip(questions, chosen, strict=True) for number in own)
        found = iter(written(reader, ({"question": text, "context": passages[number]} for text, number in rows)))
        best = (max(((next(found), number) for number in own), key=lambda pair: pair[0]["score"]) for own in chosen)
        return [ReadAnswer(answer["answer"] or "", None if answer["answer"] is None else at) for answer, at in best]

    return read


def state_reader(checkpoint: Path, states: Path) -> AnswerReader:
    """Returns a reader whose upper layers read questions with the states of passages in a folder."""
    reader = passage_reader_of(checkpoint)
    held = PassageStates(states, reader.dependencies)

    def read(questions: Sequence[str], candidates: Sequence[Candidates]) -> list[ReadAnswer]:
        several = {text: own for text, own in zip(questions, candidates, strict=True) if own is not None}
        predictor = PassageAnswerPredictor(reader, held, Given(several) if several else None, LineOptions(), "json")
        lines = (
            {"question": text, "passage": 1 + own[0] if own is not None and len(own) == 1 else None}
            for text, own in zip(questions, candidates, strict=True)
        )
        found = written(predictor, lines)
        return [ReadAnswer(each["answer"] or "", each["passage"] and each["passage"] - 1) for each in found]

    return read


def measured(held_out: HeldOut, apart: int, way: str, read: AnswerReader, candidates: Sequence[Candidates]) -> Result:
    """Answers the questions that have candidates from these passages. An empty sequence: the question is not read."""
    numbers = [number for number, own in enumerate(candidates) if own is None or len(own)]
    begin = time.perf_counter()
    answers = read([held_out.questions[number].text for number in numbers], [candidates[number] for number in numbers])
    seconds, scores, errors = time.perf_counter() - begin, list[AnswerScores](), list[str | None]()
    for number, answer in zip(numbers, answers, strict=True):
        scores.append(answer_scores(answer.text, held_out.questions[number].answers, may_be_none=False))
        own, gold = candidates[number], held_out.gold[number]
        error = ERRORS[0] if own is not None and gold not in own else ERRORS[1 if answer.passage != gold else 2]
        errors.append(None if scores[-1].exact_match else error)
    return Result(apart, way, numbers, scores, errors, seconds)


def difference(held_out: HeldOut, first: Result, second: Result) -> dict[str, Any]:
    """Returns the mean difference of F1 on the questions that both have, with its interval over passages. The values of
    a passage are linearised, so that their mean is the mean over questions (Cochran 1977, section 6.3)."""
    values = [
        {number: score.f1 for number, score in zip(own.numbers, own.scores, strict=True)} for own in (first, second)
    ]
    both = sorted(values[0].keys() & values[1].keys())
    differences = np.array([values[0][number] - values[1][number] for number in both])
    _, passage = np.unique([held_out.gold[number] for number in both], return_inverse=True)
    sums, counts = np.bincount(passage, differences), np.bincount(passage)
    middle = float(differences.mean())
    estimated = estimate(middle + (sums - counts * middle) * len(counts) / len(both))
    names = {name: f"{own.way}, k = {own.apart}" for name, own in (("first", first), ("second", second))}
    interval = {} if estimated.interval is None else estimated.interval._asdict()
    return {**names, "questions": len(both), "f1": middle, **interval}


def differences(held_out: HeldOut, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the differences of readers from the first reader, and of choices of passages from the choice before."""
    by_name = {(result.apart, result.way): result for result in results}
    depths = [*dict.fromkeys(result.apart for result in results)]
    pairs = [((apart, way), (depths[0], way)) for apart in depths[1:] for way in WAYS]
    pairs += [((apart, way), (apart, other)) for apart in depths for other, way in pairwise(WAYS)]
    return [difference(held_out, by_name[first], by_name[second]) for first, second in pairs]


def found_by(finder: PassageFinder, held_out: HeldOut) -> tuple[list[list[int]], dict[str, float]]:
    """Returns the passages that a retriever finds for each question, and the shares of right passages with the
    milliseconds a question."""
    begin = time.perf_counter()
    nearest = finder.nearest_of([question.text for question in held_out.questions])
    seconds = time.perf_counter() - begin
    found = [[number for number, _ in own] for own in nearest]
    hits = {
        f"hit@{top}": 100 * mean(gold in own[:top] for gold, own in zip(held_out.gold, found, strict=True))
        for top in (1, TOP)
    }
    return found, {"passages": len(held_out.passages), **hits, "ms": 1000 * seconds / len(found)}


def read_all_ways(
    held_out: HeldOut, checkpoint: Path, file: Path, found: Sequence[Sequence[int]], exhaustive: int
) -> tuple[list[Result], float | None]:
    """Returns the results of a reader from each choice of passages, and the milliseconds to encode a passage; None if
    no layer reads passages apart. file: of the passages."""
    apart, per_passage = apart_of(load(checkpoint)[1]), None
    if apart:
        begin = time.perf_counter()
        encode_passages(checkpoint, file, states := file.with_name(f"states {apart}"))
        per_passage = 1000 * (time.perf_counter() - begin) / len(held_out.passages)
        read = state_reader(checkpoint, states)
    else:
        read = row_reader(checkpoint, held_out.passages)
    few = {*evenly(len(held_out.questions), exhaustive)}
    candidates: list[Sequence[Candidates]] = [
        [[gold] for gold in held_out.gold],
        [own[:1] for own in found],
        found,
        [None if number in few else () for number in range(len(found))],
    ]
    ways = zip(WAYS, candidates, strict=True)
    return [measured(held_out, apart, way, read, chosen) for way, chosen in ways], per_passage


def report(console: Console, results: Mapping[str, Any]) -> None:
    console.print(shown("Retriever", results["retriever"]))
    console.print(shown("Answers, and errors in percent of questions", results["answers"]))
    console.print(shown("Differences of F1, first less second", results["differences"]))
    console.print(shown("Milliseconds a question", results["times"]))


def times_of(results: Sequence[Result], find: float, encode: Mapping[int, float | None]) -> list[dict[str, Any]]:
    """Returns the milliseconds of each reader by stage. find: a question, by the retriever. encode: a passage."""
    rows: list[dict[str, Any]] = [{"stage": "find passages", "ms": find}]
    for result in results:
        stage = f"read {result.way}"
        rows.append({"stage": stage, "k": result.apart, "ms": 1000 * result.seconds / len(result.numbers)})
    once = ({"stage": "encode a passage, once", "k": apart, "ms": each} for apart, each in encode.items() if each)
    return [*rows, *once]


def main(
    steps: Annotated[int, typer.Option(min=1, help="Number of training updates of a reader.")] = 150,
    apart: Annotated[
        int, typer.Option(min=1, help="Number of lower layers of the second reader that read texts apart.")
    ] = 5,
    questions: Annotated[int, typer.Option(min=2, help="Answer at most this many held-out questions.")] = 240,
    exhaustive: Annotated[int, typer.Option(min=1, help="Answer this many questions from all passages.")] = 25,
    passages: Annotated[int, typer.Option(help="Search at least this many passages.")] = 240,
    fold: Annotated[int, typer.Option(min=0, help="Hold out this fold of passages.")] = 0,
    retriever_steps: Annotated[int, typer.Option(min=0, help="Number of training updates of the retriever.")] = 0,
    retriever: Annotated[Path | None, typer.Option(help="Find passages by this checkpoint.")] = None,
    reader: Annotated[list[Path] | None, typer.Option(help="Measure these checkpoints instead of training.")] = None,
    folder: Annotated[Path | None, typer.Option("--to", help="Keep the runs in this folder.")] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Train small networks on few texts, to check this script.")
    ] = False,
    json_name: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Measure a retriever and two readers on the path from a question to its answer."""
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        file, place = Path(temporary, "passages.txt"), folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        few = place / "tiny.jsonl" if tiny else None
        if few is not None:
            write_tiny(few)
        configs = {f"reader {k}": reader_config(k, steps, fold, few) for k in (0, 1 if tiny else apart)}
        checkpoints = reader or [trained(config, place / name) for name, config in configs.items()]
        config = config_of_readers(checkpoints)
        held_out = held_out_of(config, questions, 0 if tiny else passages)
        file.write_text("".join(f"{text}\n" for text in held_out.passages), encoding="utf-8")
        if retriever is None:
            pairs = write_pairs(config, place / "pairs")
            retriever = trained(retriever_config(pairs, retriever_steps, tiny), place / "retriever")
        finder = passage_finder_of(retriever, [*passages_in(file)], LineOptions(), top=TOP)
        found, measured_finder = found_by(finder, held_out)
        results, encode = list[Result](), dict[int, float | None]()
        for checkpoint in checkpoints:
            own, per_passage = read_all_ways(held_out, checkpoint, file, found, exhaustive)
            results += own
            encode[own[0].apart] = per_passage
    printed = {
        "machine": describe(),
        "tiny": tiny,
        "retriever": [measured_finder],
        "answers": [result.row for result in results],
        "differences": differences(held_out, results),
        "times": times_of(results, measured_finder["ms"], encode),
    }
    report(console, printed)
    if tiny:
        console.print("Small networks: these numbers say that the script runs, and nothing about answers or speed.")
    if json_name is not None:
        console.print(f"wrote {save(json_name, printed)}")


if __name__ == "__main__":
    typer.run(main)
