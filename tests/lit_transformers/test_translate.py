"""Lines through a checkpoint: as many come out as go in, in their order, with messages about them."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from datamodules import DataError, DocstringsConfig, JsonPairsConfig
from lit_transformers.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.inference import precision
from lit_transformers.inference.lines import batches
from lit_transformers.inference.translate import TranslationOptions, Translator, require_purpose
from lit_transformers.maps import LinearMap
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, fit

WORDS = ["red", "green", "blue", "one", "two", "six"]
LONGEST = 7
"""Symbols of a source, with the boundary."""


def lines_of(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, LONGEST - 1))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts to copy, from a language called aa to one called bb."""
    folder = tmp_path_factory.mktemp("words")
    for split, count in (("train", 2000), ("val", 40)):
        text = "".join(f"{line}\n" for line in lines_of(count, count))
        for language in ("aa", "bb"):
            (folder / f"{split}.{language}").write_text(text)
    return folder


def config_of(folder: Path, steps: int = 220) -> RunConfig:
    return RunConfig.from_dict(
        {
            "model": {"kind": "encoder_decoder", "dim": 32, "heads": 2, "depth": 1, "positions": "learned"},
            "task": {"kind": "seq2seq", "metrics": ["bleu", "accuracy"], "decoding": "greedy"},
            "data": {
                "kind": "pairs",
                "source": {"kind": "parallel", "path": str(folder), "source": "aa", "target": "bb"},
                "tokenizer": "words",
                "tokens_per_batch": 256,
                "longest_source": LONGEST,
                "longest_target": LONGEST,
            },
            "training": {"steps": steps, "device": "cpu", "optimizer": {"kind": "adam", "learning_rate": 0.005}},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that learned to copy words."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("run")
    record = fit(config_of(folder), directory)
    assert record["outcome"] == "finished" and record["metrics"]["val/bleu"] > 90, record
    return directory / CHECKPOINT


def translate(
    checkpoint: Path, lines: Iterable[str], options: TranslationOptions | None = None
) -> tuple[list[str], list[str]]:
    """The outputs, and the messages."""
    translator = Translator(checkpoint, options or TranslationOptions())
    outputs = list(translator.write(f"{line}\n".encode() for line in lines))
    return outputs, list(translator.messages())


pytestmark = pytest.mark.slow
"""All but the last train a model first."""


@pytest.mark.parametrize(
    "wanted",
    [
        TranslationOptions(),
        TranslationOptions(window=3),
        TranslationOptions(batch_tokens=1),
        TranslationOptions(beams=3),
        TranslationOptions(beams=3, precision="int8"),
    ],
)
def test_lines_come_out_translated_and_in_order(
    checkpoint: Path, wanted: TranslationOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_int8_product", lambda: True)
    lines = lines_of(50, 7)
    outputs, messages = translate(checkpoint, lines, wanted)
    assert len(outputs) == 50 and sum(output == line for output, line in zip(outputs, lines, strict=True)) >= 47
    assert messages == ["lines: 50"]


def test_a_line_says_the_same_whatever_stands_beside_it(checkpoint: Path) -> None:
    lines = lines_of(30, 8)
    batched, _ = translate(checkpoint, lines)
    assert [translate(checkpoint, [line])[0][0] for line in lines] == batched


def test_every_map_of_int8_multiplies_codes_and_bfloat16_is_autocast(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_int8_product", lambda: True)
    translator = Translator(checkpoint, TranslationOptions(precision="int8"))
    maps = [module for module in translator.task.modules() if isinstance(module, LinearMap)]
    assert len(maps) == 16 and {one.quantiser.execution for one in maps if one.quantiser} == {"int8"}
    translator = Translator(checkpoint, TranslationOptions(precision="bfloat16"))
    dtypes = set[torch.dtype]()
    for module in translator.task.modules():
        if isinstance(module, LinearMap):
            module.register_forward_hook(lambda _, __, output: dtypes.add(output.dtype))
    assert [*translator.write([b"red two"])] == ["red two"]
    assert dtypes == {torch.bfloat16}


def test_empty_lines_stay_empty_and_are_counted(checkpoint: Path) -> None:
    outputs, messages = translate(checkpoint, ["", "red", "   ", "two six", ""])
    assert outputs == ["", "red", "", "two six", ""]
    assert messages == ["lines: 5", "empty, and left so: 3"]


def test_lines_end_as_windows_or_the_last_one_ends_them_behind_a_mark_of_utf_8(checkpoint: Path) -> None:
    translator = Translator(checkpoint, TranslationOptions())
    assert list(translator.write([b"\xef\xbb\xbfred two\r\n", b"six"])) == ["red two", "six"]
    assert [*translator.messages()] == ["lines: 2"], "no symbol is unknown"


def test_nothing_is_told_to_have_come_in(checkpoint: Path) -> None:
    assert translate(checkpoint, []) == ([], ["nothing came in, so nothing was written"])


def test_lines_longer_than_those_of_training_are_cut_and_counted(checkpoint: Path) -> None:
    outputs, messages = translate(checkpoint, ["red", " ".join(["two"] * 9), " ".join(["six"] * (LONGEST - 1))])
    assert outputs[1] and translate(checkpoint, [" ".join(["two"] * (LONGEST - 1))])[0] == [outputs[1]]
    assert messages == ["lines: 3", "cut to 6 symbols, the longest of training: 1 (line 2)"]


def test_or_they_are_refused_by_number_and_come_out_empty(checkpoint: Path) -> None:
    lines = ["red", *[" ".join(["two"] * 9)] * 12]
    outputs, messages = translate(checkpoint, lines, TranslationOptions(overlong="refuse"))
    assert outputs == ["red", *[""] * 12]
    assert messages[1] == (
        "refused and left empty, longer than the 6 symbols of training: 12 (line 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...)"
    )


def test_unknown_symbols_are_counted(checkpoint: Path) -> None:
    outputs, messages = translate(checkpoint, ["red mauve two", "mauve"])
    alone = "lines with a text of unknown symbols only: 1 (line 2)"
    assert len(outputs) == 2 and messages == ["lines: 2", "unknown symbols: 2 of 4", alone]


def test_a_wrong_encoding_is_told_with_its_line_after_those_before_it(checkpoint: Path) -> None:
    translator, outputs = Translator(checkpoint, TranslationOptions()), []
    with pytest.raises(DataError, match=r"line 3: byte 5 is no UTF-8 \(0xe9\); convert the text"):
        for text in translator.write([b"red\n", b"six\n", b"two \xe9\n", b"blue\n"]):
            outputs.append(text)
    assert outputs == ["red", "six"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (TranslationOptions(source="bb"), "--from: bb was requested, and this checkpoint was trained from aa to bb"),
        (
            TranslationOptions(source="aa", target="cc"),
            "--to: cc was requested, and this checkpoint was trained from aa to bb",
        ),
        (
            TranslationOptions(length_penalty=1.0),
            "--length-penalty: greedy decoding compares no lengths; give more --beams",
        ),
        (TranslationOptions(beams=1, length_penalty=1.0), "--length-penalty: greedy decoding compares no lengths"),
    ],
)
def test_what_the_checkpoint_cannot_do_is_refused_in_a_line(
    checkpoint: Path, wanted: TranslationOptions, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Translator(checkpoint, wanted)
    assert Translator(checkpoint, TranslationOptions(source="aa", target="bb"))


def test_options_change_the_decoding_and_nothing_else_of_it(checkpoint: Path) -> None:
    beam = Translator(checkpoint, TranslationOptions(beams=5, length_penalty=0.0)).task.config.decoding.to_dict()
    greedy = Translator(checkpoint, TranslationOptions()).task.config.decoding.to_dict()
    assert (beam["kind"], beam["beams"], beam["length_penalty"]) == ("beam", 5, 0.0)
    assert all(beam[name] == greedy[name] for name in ("ratio", "extra", "cache"))


def test_the_command_writes_lines_to_one_stream_and_counts_to_the_other(checkpoint: Path) -> None:
    run = [sys.executable, "-m", "lit_transformers", "translate", str(checkpoint)]
    done = subprocess.run(run, input=b"red six\n\ntwo\n", capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"red six\n\ntwo\n"), done.stderr
    assert done.stderr.decode().splitlines() == ["lines: 3", "empty, and left so: 1"]


@pytest.fixture(scope="module")
def draft(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that learned less."""
    directory = tmp_path_factory.mktemp("draft")
    fit(config_of(folder, steps=60).override({"model.dim": 16}), directory)
    return directory / CHECKPOINT


def test_a_draft_changes_no_line_and_is_counted(checkpoint: Path, draft: Path) -> None:
    lines = lines_of(30, 5)
    expected, _ = translate(checkpoint, lines)
    outputs, messages = translate(checkpoint, lines, TranslationOptions(beams=1, draft=draft, draft_symbols=3))
    assert outputs == expected
    numbers = re.fullmatch(r"accepted (\d+) of (\d+) drafted symbols .*, (\d\.\d\d) a pass", messages[-1])
    assert numbers is not None and 0 < int(numbers[1]) < int(numbers[2]) and float(numbers[3]) > 1


def test_a_draft_that_cannot_serve_is_refused_in_one_line(
    checkpoint: Path, draft: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line_of(model: Path, *options: str) -> str:
        assert main(["translate", str(model), "--draft", *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    def other(**changes: object) -> Path:
        directory = tmp_path / str(len([*tmp_path.iterdir()]))
        fit(config_of(folder, steps=1).override(changes), directory)
        capsys.readouterr()
        return directory / CHECKPOINT

    assert "add --beams 1" in line_of(checkpoint, str(draft), "--beams", "2")
    assert "has other symbols" in line_of(checkpoint, str(other(**{"data.tokenizer": "characters"})))
    assert "sources of 4 symbols" in line_of(checkpoint, str(other(**{"data.longest_source": 5})))
    whole_only = other(**{"model.decoder_mixer": {"kind": "synthesizer"}, "task.decoding.cache": False})
    assert "cannot be read symbol by symbol; omit the draft" in line_of(checkpoint, str(whole_only))
    forgets = other(**{"model.decoder_mixer": {"kind": "attention", "memory": 2}})
    assert "model.decoder_mixer.memory is 2; omit the draft" in line_of(forgets, str(draft))


def test_a_translator_summarizes_nothing(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summarize", str(checkpoint)]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "summarize: this checkpoint translates from aa to bb; use: translate" in output.err


def test_what_writes_summaries_translates_nothing_and_of_unnamed_languages_both_are_believed() -> None:
    with pytest.raises(ConfigError, match="translate: this checkpoint was trained on summaries, docstrings"):
        require_purpose("translate", DocstringsConfig(), None)
    require_purpose("summarize", DocstringsConfig(), None)
    for purpose in ("translate", "summarize"):
        require_purpose(purpose, JsonPairsConfig(path="pairs"), None)


@pytest.mark.parametrize(
    ("options", "given", "status", "out", "last"),
    [
        (["--from", "bb"], b"red\n", 2, b"", "error: --from: bb was requested"),
        (["--overlong", "refuse"], b"red " * 20, 1, b"\n", "refused and left empty"),
        ([], b"red\n\xff\n", 2, b"red\n", "error: line 2: byte 1 is no UTF-8"),
        ([], b"red\n" + b"red " * 21, 2, b"red\n", "error: standard input:2: a line of more than 80 bytes"),
    ],
)
def test_the_command_fails_in_one_line(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    options: list[str],
    given: bytes,
    status: int,
    out: bytes,
    last: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    monkeypatch.setenv("LIT_LONGEST_RECORD", "80")
    returned = main(["translate", str(checkpoint), *options])
    output = capfdbinary.readouterr()
    assert (returned, output.out) == (status, out)
    messages = output.err.decode().splitlines()
    assert messages[-1].startswith(last)
    assert out or len(messages) == 1, "nothing came out, and more was said than why"


def test_batches_hold_lines_of_about_one_length_within_their_budget() -> None:
    sizes = [3, 9, 0, 4, 9, 2, 1]
    index_batches = list(batches(sizes, 18))
    assert index_batches == [[1, 4], [3, 0, 5, 6]]
    assert list(batches([30, 2], 18)) == [[0], [1]], "a line longer than the budget goes alone"
