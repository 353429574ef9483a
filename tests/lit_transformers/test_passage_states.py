"""States of passages on disk: precisions and checksums against slow oracles, answers against ``predict`` on the same
windows, an ``encode`` that is killed, and refusals."""

from __future__ import annotations

import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_transformers import checked_files
from lit_transformers.__main__ import main
from lit_transformers.checked_files import NOTHING, CheckedFile, CheckedWriter, Precision, VectorLayout
from lit_transformers.config import ConfigError
from lit_transformers.inference import answer_passages
from lit_transformers.inference import encode_passages as encoding
from lit_transformers.inference import precision as arithmetic
from lit_transformers.inference.answer_passages import PassageAnswerPredictor, passage_answer_predictor_of
from lit_transformers.inference.encode_passages import encode_passages, passage_reader_of
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.passage_states import PassageStates, PassageStatesWriter
from lit_transformers.inference.passages import PassageFinder
from lit_transformers.inference.predict import predictor_of
from lit_transformers.runs import RunConfig
from lit_transformers.runs.train import contents

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
WIDTH, LENGTH = 16, 60
DEFORMER = {"kind": "deformer", "dim": 16, "heads": 2, "depth": 3, "apart": 2, "positions": "learned", "segments": 2}
NAMES = ["ada", "bob", "eve", "kim", "leo", "mia"]
QUESTIONS = [f"cats of {name}?" for name in NAMES]


def passages() -> list[str]:
    """Passages of one to four windows."""
    counts = [[f"{NAMES[(a + b) % 6]} has {1 + a * b % 9} cats." for b in range(1 + a % 5)] for a in range(12)]
    tails = [f" In the year {1900 + number} it was so all day long." * (number % 3) for number in range(12)]
    return [" ".join(sentences) + tail for sentences, tail in zip(counts, tails, strict=True)]


def saved(config: RunConfig, folder: Path, seed: int = 0) -> Path:
    """The checkpoint of a run that has not been trained, whose weights are large enough to tell texts apart."""
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    data = config.build_data()
    checkpoint = {
        "lit_transformers": contents(config, data, "its own"),
        "state_dict": config.override({"seed": seed}).build_task(data).state_dict(),
    }
    torch.save(checkpoint, folder / "checkpoint.ckpt")
    return folder / "checkpoint.ckpt"


def config_over(folder: Path, **changes: Any) -> RunConfig:
    source = {"kind": "questions", "path": str(folder / "questions.jsonl"), "language": None, "length": LENGTH}
    plain = {
        "model": DEFORMER | {"initial_std": 0.3},
        "task": {"kind": "question_answering", "threshold": -2.0, "longest_answer": 6},
        "data": {"kind": "labelled", "source": source | {"stride": 24, "validation": 0.3, "question_width": WIDTH}},
        "training": {"steps": 1, "device": "cpu"},
    }
    return RunConfig.from_dict(plain).override(changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with questions, passages in lines, of which some are empty, and the checkpoint of a reader."""
    folder = tmp_path_factory.mktemp("passages")
    records = [
        {"question": QUESTIONS[number % 6], "context": passage, "answers": [{"text": "has", "answer_start": 4}]}
        for number, passage in enumerate(passages())
    ]
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folder / "passages.txt").write_text("\n\n".join(passages()) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_CACHE", str(folder / "cache"))
        saved(config_over(folder), folder)
    return folder


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_CACHE", str(folder / "cache"))


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, Path]:
    """The folders of states in each precision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_CACHE", str(folder / "cache"))
        for precision in PRECISIONS:
            encode(folder, folder / precision, precision)
    return {precision: folder / precision for precision in PRECISIONS}


def encode(folder: Path, to: Path, precision: Precision = "float32", passages: str = "passages.txt") -> None:
    encode_passages(folder / "checkpoint.ckpt", folder / passages, to, precision, 256)


def of_bfloat16(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers of which the upper 16 bits are kept, rounded to nearest and half to even."""
    bits = vectors.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def of_int8(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Channel by channel: rounded multiples of the largest absolute value, of which there are 127."""
    columns = []
    for column in vectors.T:
        scale = np.float32(max(abs(column)) / np.float32(127))
        columns.append([scale * (round(float(number / scale)) if scale else 0) for number in column])
    return np.array(columns, np.float32).T


@settings(max_examples=50, deadline=None)
@given(
    vectors=st.integers(1, 6).flatmap(
        lambda width: st.lists(
            st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=width, max_size=width),
            min_size=1,
            max_size=5,
        )
    )
)
def test_each_precision_is_that_of_a_slow_oracle(vectors: list[list[float]]) -> None:
    numbers = np.array(vectors, np.float32)
    for precision, oracle in (("float32", np.copy), ("bfloat16", of_bfloat16), ("int8", of_int8)):
        layout = VectorLayout(precision, numbers.shape[1])  # type: ignore[arg-type]
        content = layout.written(torch.from_numpy(numbers))
        assert len(content) == layout.size(len(numbers)) == layout.total(1, len(numbers))
        read = layout.read(np.frombuffer(content, np.uint8), len(numbers))
        np.testing.assert_allclose(read.numpy(), oracle(numbers), rtol=1e-6 if precision == "int8" else 0, atol=0)
        padded = torch.from_numpy(np.concatenate([numbers, np.full_like(numbers[:1], 2e4)]))[None]
        real = torch.arange(len(numbers) + 1)[None] < len(numbers)
        assert torch.equal(layout.rounded(padded, real)[0, :-1], read)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(checked_files, "BLOCK", 64)
    return 64


@pytest.mark.parametrize("certain", [0, 1, 63, 64, 200])
def test_a_file_continues_behind_what_was_certain_and_every_flipped_byte_is_noticed(
    tmp_path: Path, small_blocks: int, certain: int
) -> None:
    content, file = bytes(number % 251 for number in range(300)), tmp_path / "file"
    writer, extent = CheckedWriter(file), NOTHING
    for number in range(0, 300, 50):  # it is killed behind a save that nobody has noted
        if number <= certain < number + 50:
            writer.append(content[number:certain])
            writer.save()
            extent = writer.extent
            writer.append(content[certain : number + 50])
        else:
            writer.append(content[number : number + 50])
    writer.append(b"of a process that was killed")
    writer.save()
    writer = CheckedWriter(file, extent)
    assert writer.append(content[certain:]) == certain
    writer.save()
    assert CheckedFile(file, writer.extent).read(0, 300).tobytes() == file.read_bytes() == content
    for place in range(0, 300, 7) if certain == 200 else ():
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        damaged, block = CheckedFile(file, writer.extent), place // small_blocks
        for other in range(5):
            if other != block:
                damaged.read(other * small_blocks, 1)
        with pytest.raises(ConfigError, match=rf"file: is a damaged cache: a byte from {64 * block} to .* has changed"):
            damaged.read(max(0, block * small_blocks - 1), 2)


def answered(predictor: Any, *lines: Any) -> list[Any]:
    return [json.loads(line) for line in predictor.write(f"{json.dumps(line)}\n".encode() for line in lines)]


def reader(folder: Path, states: Path, **options: Any) -> PassageAnswerPredictor:
    return passage_answer_predictor_of(folder / "checkpoint.ckpt", states, LineOptions(), **options)


PAIRS = [(question, number) for number in range(12) for question in QUESTIONS[:3]]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_answers_from_a_cache_are_those_of_predict_on_the_same_windows(
    folder: Path, states: dict[str, Path], precision: Precision
) -> None:
    expected = answered(
        predictor_of(folder / "checkpoint.ckpt", LineOptions(), "json"),
        *({"question": question, "context": passages()[number]} for question, number in PAIRS),
    )
    predictor = reader(folder, states[precision])
    lines = [{"question": question, "passage": 1 + 2 * number} for question, number in PAIRS]
    found = answered(predictor, *lines, {"question": " "})
    assert found.pop() == dict.fromkeys(("answer", "passage", "start", "end", "score", "probability"))
    assert 0 < sum(answer["answer"] is None for answer in expected) < len(expected)
    tolerance = {"float32": 2e-6, "bfloat16": 0.02, "int8": 0.02}[precision]
    equal = 0
    for own, other, (_, number) in zip(found, expected, PAIRS, strict=True):
        equal += own["answer"] == other["answer"]
        if own["answer"] == other["answer"]:
            assert {name: own[name] for name in ("start", "end")} == {name: other[name] for name in ("start", "end")}
            assert own["probability"] == pytest.approx(other["probability"], abs=tolerance)
            assert own["passage"] == (None if own["answer"] is None else 1 + 2 * number)
    assert equal == len(PAIRS) if precision == "float32" else equal > 0.9 * len(PAIRS)


@pytest.mark.parametrize("computed", ["bfloat16", "int8"])
def test_answers_from_a_cache_are_computed_in_a_precision(
    folder: Path, states: dict[str, Path], computed: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """int8 is computed on every processor, on some of them slowly."""
    monkeypatch.setattr(arithmetic, "has_int8_product", lambda: True)
    lines = [{"question": question, "passage": 1 + 2 * number} for question, number in PAIRS]
    exact = answered(reader(folder, states["float32"]), *lines)
    options = LineOptions(precision=computed)
    predictor = passage_answer_predictor_of(folder / "checkpoint.ckpt", states["float32"], options)
    found = answered(predictor, *lines)
    assert all(one["score"] != other["score"] for one, other in zip(found, exact, strict=True))
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in exact], rel=0.02, abs=0.1)
    alone = [answered(predictor, line)[0]["score"] for line in lines[:6]]
    assert alone == pytest.approx([one["score"] for one in found[:6]], abs=1e-5)


def test_a_network_reads_states_of_a_cache_as_it_reads_the_row(folder: Path, states: dict[str, Path]) -> None:
    """The vectors above all layers, norm-wise, of windows with padding on both sides."""
    task = passage_reader_of(folder / "checkpoint.ckpt").task
    predictor, tokenizer = reader(folder, states["float32"]), None
    held, windows = predictor.states, predictor.reader.windows
    tokenizer = windows.tokenizer
    some = [window for number in (0, 3, 8) for window in held.windows_of(number)]
    question = tokenizer.encode(QUESTIONS[0].encode())
    rows, masks, segments = (torch.zeros(len(some), LENGTH, dtype=torch.long) for _ in range(3))
    for row, window in enumerate(some):
        symbols = tokenizer.encode(passages()[window.passage].encode())
        own = windows.row(question, symbols, window.symbols)
        rows[row, 0], rows[row, 1 : 1 + len(own.symbols)] = task.data.vocabulary.boundary, torch.tensor(own.symbols)
        masks[row, : len(question) + 2] = masks[row, WIDTH : WIDTH + window.tokens] = 1
        segments[row, WIDTH : WIDTH + window.tokens] = 1
    first = torch.zeros_like(masks).bool()
    first[:, 0] = True
    expected = task.network.read_row(rows, masks.bool(), first, segments).hidden
    vectors = torch.zeros(len(some), LENGTH - WIDTH, 16)
    for row, window in enumerate(some):
        vectors[row, : window.tokens] = held.states(window)
    read = task.network.read_with(rows[:, :WIDTH], masks[:, :WIDTH].bool(), vectors, masks[:, WIDTH:].bool()).hidden
    real = masks.bool()
    assert (read[real] - expected[real]).norm() < 1e-6 * expected[real].norm()


def test_the_lower_layers_read_each_question_once(
    folder: Path, states: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of at most ``batch_tokens`` symbols, of which no two have their states in memory. The upper layers
    read each question with each window."""
    few = LineOptions(batch_tokens=3 * WIDTH)
    predictor = passage_answer_predictor_of(folder / "checkpoint.ckpt", states["float32"], few)
    read: tuple[list[int], list[int]] = ([], [])
    for part, counts in zip(predictor.reader.network.parts, read, strict=True):  # type: ignore[arg-type]
        part.register_forward_hook(lambda _, arguments, output, counts=counts: counts.append(len(output.y)))
    kept: list[weakref.ref[torch.Tensor]] = []
    whole = predictor.question_states

    def recorded(*texts: torch.Tensor) -> torch.Tensor:
        assert not [each for each in kept if each() is not None], "states of the batch before are still in memory"
        made = whole(*texts)
        kept.append(weakref.ref(made))
        return made

    monkeypatch.setattr(predictor, "question_states", recorded)
    lines = [{"question": question} for question in QUESTIONS]
    found = answered(predictor, *lines)
    assert read[0] == [3, 3]
    assert sum(read[1]) == len(QUESTIONS) * len(predictor.states.windows)
    for own, other in zip(found, answered(reader(folder, states["float32"]), *lines), strict=True):
        assert own == other | {name: pytest.approx(other[name], abs=2e-6) for name in ("score", "probability")}


def test_of_several_passages_the_span_with_the_greatest_score_is_the_answer(
    folder: Path, states: dict[str, Path]
) -> None:
    predictor = reader(folder, states["float32"], threshold=100.0)
    lines = [{"question": question, "passage": line} for question in QUESTIONS for line in range(1, 24, 2)]
    each = answered(predictor, *lines)
    for number, found in enumerate(answered(predictor, *({"question": question} for question in QUESTIONS))):
        own = each[12 * number : 12 * (number + 1)]
        best = max(own, key=lambda answer: answer["score"])
        assert found | {"probability": 0} == {**best, "score": pytest.approx(best["score"], abs=1e-5), "probability": 0}
        assert found["probability"] < best["probability"], "a share among the spans of all passages"
    assert len({answer["passage"] for answer in answered(predictor, *lines)}) == 12


def test_only_spans_that_may_be_the_answer_stay_in_memory(
    folder: Path, states: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any number of windows that are read together, also if the windows of a passage are read one after another."""
    lines = [{"question": question} for question in QUESTIONS]
    whole = answered(reader(folder, states["float32"]), *lines)
    held: list[int] = []

    class Counted(answer_passages.FoundSpans):
        def reduce(self) -> None:
            super().reduce()
            held.append(len(self.spans))

    monkeypatch.setattr(answer_passages, "FoundSpans", Counted)
    for together in (1, 5, 39):
        monkeypatch.setattr(answer_passages, "TOGETHER", together)
        for own, other in zip(answered(reader(folder, states["float32"]), *lines), whole, strict=True):
            assert own == other | {name: pytest.approx(other[name], abs=2e-6) for name in ("score", "probability")}
    every = reader(folder, states["float32"]).states
    largest = max(len([*every.windows_of(number)]) for number in range(len(every)))
    assert max(held) <= 2 * largest < len(every.windows), "windows of two passages"


def test_of_equal_passages_the_first_has_the_answer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.txt").write_text(f"{passages()[3]}\n" * 2)
    encode(folder, tmp_path / "states", passages=str(tmp_path / "twice.txt"))
    predictor = reader(folder, tmp_path / "states", threshold=100.0)
    both, first = answered(predictor, {"question": QUESTIONS[0]}, {"question": QUESTIONS[0], "passage": 1})
    assert {**both, "probability": 0} == {**first, "score": pytest.approx(first["score"], abs=1e-5), "probability": 0}


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class KilledError(Exception):
    """Stands for a signal between two instructions."""


LIVES = {"append": (3, 17, 1, 26, 9, 40), "save": (2, 5, 9, 3, 8, 4), "write_group": (1, 0, 2)}


@pytest.mark.parametrize("call", LIVES)
def test_an_encode_that_is_killed_anywhere_continues_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Killed each time after some calls of a function that changes files, with one batch a group, and started again."""
    monkeypatch.setattr(encoding, "GROUP", 1)
    owner: Any = encoding if call == "write_group" else CheckedWriter
    whole, left, calls = getattr(owner, call), [1000], []

    def killed(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError
        calls.append(arguments)
        return whole(*arguments)

    monkeypatch.setattr(owner, call, killed)
    encode(folder, tmp_path / "undisturbed")
    undisturbed = len(calls)
    for lives in LIVES[call]:
        left[0] = lives
        with pytest.raises(KilledError):
            encode(folder, tmp_path / "killed")
        with pytest.raises(ConfigError, match=r"killed: holds (no states|incomplete states; start encode)"):
            PassageStates(tmp_path / "killed", {})
    left[0] = 1000
    encode(folder, tmp_path / "killed")
    assert contents_of(tmp_path / "killed") == contents_of(tmp_path / "undisturbed")
    if call == "write_group":
        assert len(calls) == 2 * undisturbed, "no group is computed twice"


def test_a_longer_file_is_added_and_another_one_refused(folder: Path, states: dict[str, Path], tmp_path: Path) -> None:
    lines = (folder / "passages.txt").read_text().splitlines()
    for name, kept in (("short", lines[:7]), ("other", ["Another.", *lines[1:]])):
        (tmp_path / name).write_text("\n".join(kept) + "\n")
    paths = {name: str(tmp_path / name) for name in ("short", "other")}
    encode(folder, tmp_path / "states", passages=paths["short"])
    assert len(PassageStates(tmp_path / "states", {})) == 4
    before = PassageStates(tmp_path / "states", {})
    encode(folder, tmp_path / "states")
    after, whole = PassageStates(tmp_path / "states", {}), PassageStates(states["float32"], {})
    for number in range(12):
        assert after.passage(number) == whole.passage(number)
        for window in whole.windows_of(number):
            torch.testing.assert_close(after.states(window), whole.states(window), rtol=1e-4, atol=1e-5)
    assert before.passage(3) == after.passage(3), "a process that reads meanwhile is not disturbed"
    unchanged = contents_of(tmp_path / "states")
    encode(folder, tmp_path / "states")
    assert contents_of(tmp_path / "states") == unchanged
    with pytest.raises(ConfigError, match="states: holds another passage in the place of line 1; encode the"):
        encode(folder, tmp_path / "states", passages=paths["other"])
    with pytest.raises(ConfigError, match=r"states: holds 12 passages, and .*short has 4; encode the passages again"):
        encode(folder, tmp_path / "states", passages=paths["short"])
    with pytest.raises(ConfigError, match=r"holds states in float32, and --precision is int8; encode the passages"):
        encode(folder, tmp_path / "states", "int8")
    writing = PassageStatesWriter(tmp_path / "locked", {}, VectorLayout("float32", 16))
    with writing, pytest.raises(ConfigError, match="another process encodes into it; wait for it"):
        encode(folder, tmp_path / "locked")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="mine: holds other files; name a new folder"):
        encode(folder, tmp_path / "mine")


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"model.initial_std": 0.3}, "holds states of other weights of the lower layers"),
    "tokenizer": ({"data.source.tokenizer": {"kind": "words"}, "data.source.stride": 8}, "states of another tokenizer"),
    "apart": ({"model.apart": 3}, "states of model.apart 2, and this network has 3"),
    "width": ({"data.source.question_width": 15}, "states of data.source.question_width 16, and this network has 15"),
    "positions": (
        {"model.passage_positions": "restart"},
        "states of model.passage_positions keep, and this network has restart",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_states_of_another_network_are_refused_in_a_line(
    folder: Path, states: dict[str, Path], tmp_path: Path, change: str
) -> None:
    changes, message = CHANGES[change]
    checkpoint = saved(config_over(folder, **changes), tmp_path, seed=int(change == "weights"))
    with pytest.raises(
        ConfigError, match=f"float32: holds {message.removeprefix('holds ')}; encode the passages again"
    ):
        passage_answer_predictor_of(checkpoint, states["float32"], LineOptions())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "together": ({"model.apart": 0}, "model.apart: no layer reads a passage apart from its question; set apart: 1"),
    "encoder": (
        {"model": DEFORMER},
        "model: no layer of this network reads a text apart; set model: deformer",
    ),
    "any width": ({"data.source.question_width": None}, "data.source.question_width: the windows of a passage depend"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_network_without_states_of_passages_is_refused_in_a_line(folder: Path, tmp_path: Path, case: str) -> None:
    changes, message = REFUSED[case]
    if case == "encoder":
        plain = {name: value for name, value in DEFORMER.items() if name != "apart"}
        changes = {"model": plain | {"kind": "encoder"}}
    saved(config_over(folder, **changes), tmp_path)
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'checkpoint.ckpt'}: {message}")):
        encode(tmp_path, tmp_path / "states", passages=str(folder / "passages.txt"))
    assert not (tmp_path / "states").exists()


def test_a_changed_upper_layer_reads_the_same_states(folder: Path, states: dict[str, Path], tmp_path: Path) -> None:
    """The key covers the lower part alone: a reader that was trained above it needs no other cache."""
    checkpoint = torch.load(folder / "checkpoint.ckpt", weights_only=True)
    upper = [name for name in checkpoint["state_dict"] if "blocks.2." in name]
    assert upper
    for name in upper:
        checkpoint["state_dict"][name] *= 1.5
    torch.save(checkpoint, tmp_path / "checkpoint.ckpt")
    line = {"question": QUESTIONS[0], "passage": 3}
    (changed,), (before,) = (answered(reader(path, states["float32"]), line) for path in (tmp_path, folder))
    assert changed["score"] != before["score"]


def test_a_folder_that_is_damaged_is_refused_in_a_line_when_the_part_is_read(
    folder: Path, states: dict[str, Path], tmp_path: Path, small_blocks: int
) -> None:
    with pytest.raises(
        ConfigError, match="holds no states of passages; write them by: encode CHECKPOINT PASSAGES --to"
    ):
        reader(folder, tmp_path)
    encode(folder, tmp_path / "whole")
    flipped, short = (
        "(a damaged cache: a byte from 0 to|damaged; encode)",
        "(a damaged cache, cut short: |damaged; enc)",
    )
    for name in ("states", "windows", "passages", "texts", "manifest.json"):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        path = tmp_path / name / name
        content = path.read_bytes()
        path.write_bytes(content[:10] + bytes([content[10] ^ 1]) + content[11:])
        with pytest.raises(ConfigError, match=rf"{name}/{name}.*: is {flipped}"):
            answered(reader(folder, tmp_path / name), {"question": QUESTIONS[0], "passage": 1})
        if name == "states":  # another block
            assert answered(reader(folder, tmp_path / name), {"question": QUESTIONS[0], "passage": 23})
        path.write_bytes(content[:-2])
        with pytest.raises(ConfigError, match=rf"{name}/{name}.*: is {short}"):
            reader(folder, tmp_path / name)
    (tmp_path / "whole" / "states").unlink()
    with pytest.raises(ConfigError, match=r"is a damaged cache \(.*No such file.*\); remove the folder"):
        reader(folder, tmp_path / "whole")


def test_lines_that_no_passage_can_answer_are_refused_with_their_number(folder: Path, states: dict[str, Path]) -> None:
    predictor = reader(folder, states["float32"])
    for line, message in {
        '{"question": "cats?", "passage": 2}': "line 1: .*float32 has no passage of line 2; omit it, or correct it",
        '{"question": "cats?", "passage": "1"}': 'line 1: has another form; give {"question": "..."}, or with',
        "cats?": "line 1: is no JSON; give",
        '{"question": "how many cats has she?"}': "line 1: the question: has 22 symbols, too many with .CLS",
    }.items():
        with pytest.raises(ValueError, match=message):
            [*predictor.write([line.encode()])]


def retriever(folder: Path, to: Path) -> Path:
    rows = [{"source": question, "target": passage} for question, passage in zip(QUESTIONS, passages(), strict=False)]
    for split in ("train", "validation"):
        (to / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source, longest = {"kind": "records", "path": str(to)}, {"longest_question": 12, "longest_passage": 40}
    data = {"kind": "retrieval", "source": source, "tokenizer": {"kind": "words"}, "batch_size": 4, **longest}
    model = {"kind": "encoder", "dim": 8, "heads": 2, "depth": 1, "initial_std": 0.5}
    plain = {"model": model, "task": {"kind": "retrieval", "pooling": "mean"}, "data": data, "training": {"steps": 1}}
    return saved(RunConfig.from_dict(plain), to / "retriever")


def test_commands_lead_from_questions_to_answers_in_passages_that_a_retriever_has_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    checkpoint, finder, file = (
        str(folder / "checkpoint.ckpt"),
        retriever(folder, tmp_path),
        str(folder / "passages.txt"),
    )

    def run(*arguments: str, status: int = 0) -> list[str]:
        (tmp_path / "in").write_text("".join(f"{question}\n" for question in QUESTIONS))
        with (tmp_path / "in").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert main([*arguments]) == status
        return capsysbinary.readouterr().out.decode().splitlines()

    sizes = run("encode", checkpoint, file, "--to", str(tmp_path / "states"), "--precision", "float32")
    assert sizes[0] == "passages: 12, in 39 windows of 1,560 tokens"
    assert sizes[1:] == ["states in float32: 97.5 KiB", "bytes a passage: float32 8,320, bfloat16 4,160, int8 2,288"]
    found = [json.loads(line) for line in run("predict", str(finder), "--passages", file, "--top", "2")]
    monkeypatch.delattr(PassageFinder, "vectors_of_passages")  # the vectors of the passages are on the disk
    of_found = ["--passages", str(tmp_path / "states"), "--retriever", str(finder), "--top", "2", "--threshold", "100"]
    answers = [json.loads(line) for line in run("answer", checkpoint, *of_found)]
    of_all = ["answer", checkpoint, "--passages", str(tmp_path / "states")]
    in_float32, in_bfloat16 = run(*of_all), run(*of_all, "--precision", "bfloat16")
    assert len(in_bfloat16) == len(in_float32) and not {*in_bfloat16} & {*in_float32}
    predictor = reader(folder, tmp_path / "states", threshold=100.0)
    for question, entries, answer in zip(QUESTIONS, found, answers, strict=True):
        lines = [entry["line"] for entry in entries["passages"]]
        each = answered(predictor, *({"question": question, "passage": line} for line in lines))
        best = max(each, key=lambda other: other["score"])
        assert answer | {"probability": 0} == best | {"probability": 0}
        assert passages()[answer["passage"] // 2][answer["start"] : answer["end"]] == answer["answer"]
    run("answer", checkpoint, "--passages", str(tmp_path / "states"), "--retriever", checkpoint, status=2)
