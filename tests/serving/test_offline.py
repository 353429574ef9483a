"""Answers over HTTP are the lines that the commands write: byte for byte for a text alone, and but for rounding among
other texts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from served import Served, rounded, serving_network
from tiny_runs import PASSAGES, Kind, tiny_run

from lit_transformers.__main__ import main
from lit_transformers.inference.encode_passages import encode_passages
from lit_transformers.serving.services import SENTENCES


class Offline(NamedTuple):
    """An ability of a server of a run. command: the arguments that write the same answers, for lines of JSON."""

    kind: Kind
    ability: str
    command: Sequence[str] = ("predict", "--lines", "json")
    passages: str | None = None


SEARCH = ("predict", "--lines", "json", "--passages", "passages.txt")
EMBED = ("predict", "--lines", "json", "--embed")
CASES = [
    Offline("classify", "classify"),
    Offline("classify", "embed", EMBED),
    Offline("score", "score"),
    Offline("tag", "tag"),
    Offline("answer", "answer"),
    Offline("apart", "answer", ("answer", "--lines", "json", "--passages", "states"), "states"),
    Offline("choose", "choose"),
    Offline("search", "search", SEARCH, "passages.txt"),
    Offline("search", "embed", EMBED, "passages.txt"),
    Offline("fill", "fill"),
    Offline("fill", "embed", EMBED),
    Offline("translate", "translate", ("translate",)),
    Offline("summarize", "summarize", ("summarize",)),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Kind, Path]]:
    folders: dict[Kind, Path] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        for kind in dict.fromkeys([*(case.kind for case in CASES), "generate"]):
            folders[kind] = tmp_path_factory.mktemp(kind)
            tiny_run(kind, folders[kind])
        passages = folders["apart"] / "passages.txt"
        passages.write_text("".join(f"{passage}\n" for passage in PASSAGES))
        encode_passages(folders["apart"] / "checkpoint.ckpt", passages, folders["apart"] / "states", "float32", 256)
        yield folders


def requests_of(ability: str, served: Served) -> list[str]:
    """Lines of JSON that the ability reads, of different lengths."""
    example = json.loads(served.dispatcher.abilities.examples[ability])
    first = "text" if "text" in example else "question"
    end = " [MASK]" if ability == "fill" else ""
    return [json.dumps(example | {first: f"{text}{end}"}, ensure_ascii=False) for text in SENTENCES]


def written(case: Offline, folder: Path, lines: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The output of the command for lines, each as the body of an answer."""
    name, *options = case.command
    is_json = "json" in case.command
    given = "".join(f"{line if is_json else json.loads(line)['text']}\n" for line in lines).encode()
    output = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        patch.setattr("sys.stdout", io.TextIOWrapper(output))
        assert main([name, "checkpoint.ckpt", *options]) == 0
        outputs = output.getvalue().splitlines()
    return [line if is_json else json.dumps({"text": line.decode()}, ensure_ascii=False).encode() for line in outputs]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.ability} of {case.kind}")
def test_answers_over_http_are_the_lines_of_the_command(
    case: Offline, folders: dict[Kind, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders[case.kind]
    passages = None if case.passages is None else folder / case.passages
    with serving_network(folder / "checkpoint.ckpt", passages=passages) as served:
        abilities = served.dispatcher.abilities
        assert abilities.checked == len(SENTENCES) * len(abilities.examples), "the gate has left out texts"
        lines = requests_of(case.ability, served)
        alone = [served.bytes_of(f"/{case.ability}", line.encode()) for line in lines]
        expected = [written(case, folder, [line], monkeypatch) for line in lines]
        assert len({*alone}) > 1
        assert [[body] for body in alone] == expected
        together = [json.loads(line) for line in written(case, folder, lines, monkeypatch)]
        many = [served.later(f"/{case.ability}", json.loads(line)) for line in lines * 3]
        lists = served.later(f"/{case.ability}", [json.loads(line) for line in lines[::-1]])
        for number, reply in enumerate(many):
            assert reply.result().body == rounded(together[number % len(lines)])
        assert lists.result().body[::-1] == rounded(together)


def test_a_text_over_http_is_the_one_that_generate_writes(
    folders: dict[Kind, Path], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = folders["generate"]
    options = {"length": 20, "temperature": 0.7, "top_k": 5, "seed": 3}
    with serving_network(folder / "checkpoint.ckpt") as served:
        assert served.ask("/health", method="GET").status == 200
        capsysbinary.readouterr()  # where it listens, which it has printed before it answers
        for prompt in ("The river", "blå"):
            arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
            assert main(["generate", str(folder / "checkpoint.ckpt"), "--prompt", prompt, *arguments]) == 0
            expected = capsysbinary.readouterr().out.decode().removesuffix("\n")
            whole = served.ask("/generate", {"prompt": prompt, **options, "stream": False})
            assert whole.body == {"text": expected}
            events = served.ask("/generate", {"prompt": prompt, **options}).body.split("\n\n")
            pieces = [json.loads(event.removeprefix("data: "))["text"] for event in events if event.startswith("data")]
            assert "".join(pieces) == expected and len(pieces) > 10
