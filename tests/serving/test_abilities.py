"""A server answers by a checkpoint as the commands do, and a text that fails spoils no other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from served import rounded
from tiny_runs import Kind, tiny_run

from lit_transformers.config import ConfigError
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.inference.embed import embedder_of
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.passages import passage_finder_of, passages_in
from lit_transformers.inference.predict import predictor_of
from lit_transformers.inference.predictor import load_for_lines
from lit_transformers.inference.translate import TranslationOptions, Translator
from lit_transformers.inference.write import TextWriter
from lit_transformers.runs import load
from lit_transformers.serving.messages import LineAnswer, Prompt, ServingOptions, TextPiece
from lit_transformers.serving.services import LineService, Services, services_of
from lit_transformers.serving.worker import check, pieces
from lit_transformers.training.checkpoints import read

ABILITIES: dict[Kind, list[str]] = {
    "classify": ["classify", "embed"],
    "tag": ["tag", "embed"],
    "answer": ["answer"],
    "choose": ["choose"],
    "search": ["search", "embed"],
    "fill": ["fill", "embed"],
    "translate": ["translate"],
}
"""The abilities of a server of each run."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    folders: dict[Kind, Path] = {}
    for kind in (*ABILITIES, "generate"):
        folders[kind] = tmp_path_factory.mktemp(kind)
        tiny_run(kind, folders[kind])
    return folders


def reads_of(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of checkpoints that are read from now on."""
    reads = list[Path]()

    def counted(file: Path) -> dict[str, Any]:
        reads.append(file)
        return read(file)

    monkeypatch.setattr(sys.modules["lit_transformers.runs.evaluate"], "read", counted)
    return reads


@pytest.mark.parametrize("kind", ["classify", "answer", "search", "translate", "generate"])
def test_a_checkpoint_is_read_once(kind: Kind, folders: dict[Kind, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    reads = reads_of(monkeypatch)
    services(folders[kind])
    assert reads == [folders[kind] / "checkpoint.ckpt"]


def test_a_network_that_cannot_read_rows_without_padding_is_read_once_too(
    folders: dict[Kind, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, reads = tiny_run("classify", tmp_path, mixer={"kind": "lsh"}), reads_of(monkeypatch)
    task, _, _ = load_for_lines(checkpoint)
    assert reads == [checkpoint] and not task.model_config.unpadded
    task, _, _ = load_for_lines(folders["classify"] / "checkpoint.ckpt")
    assert task.model_config.unpadded


def services(folder: Path, **options: Any) -> Services:
    passages = folder / "passages.txt"
    more = options | ({"passages": passages} if passages.exists() else {})
    return services_of(ServingOptions(folder / "checkpoint.ckpt", **more))


def commanded(ability: str, folder: Path, lines: Sequence[str]) -> list[Any]:
    """The output of the commands predict, search and translate for lines of JSON."""
    checkpoint, options = folder / "checkpoint.ckpt", LineOptions()
    if ability == "translate":
        texts = (json.loads(line)["text"].encode() for line in lines)
        return [{"text": text} for text in Translator(checkpoint, TranslationOptions()).write(texts)]
    if ability == "search":
        writer: Any = passage_finder_of(checkpoint, [*passages_in(folder / "passages.txt")], options, "json")
    elif ability == "embed":
        writer = embedder_of(checkpoint, options, "json")
    else:
        writer = predictor_of(checkpoint, options, "json")
    return [json.loads(line) for line in writer.write(line.encode() for line in lines)]


@pytest.mark.parametrize("kind", ABILITIES)
def test_served_answers_are_those_of_the_commands(kind: Kind, folders: dict[Kind, Path]) -> None:
    served = services(folders[kind])
    assert [*served.lines] == ABILITIES[kind] and served.writer is None
    for ability, service in served.lines.items():
        assert check(service) == 6
        lines = service.examples()
        bad = {1: b"{}", 4: b'{"text": 1, "question": 1}', 6: b'{"text": "\\ud800", "question": "\\ud800"}'}
        expected = iter(commanded(ability, folders[kind], lines))
        given = [line.encode() for line in lines]
        for place, line in bad.items():
            given.insert(place, line)
        answers = sorted(service.answers(given))
        assert [answer.place for answer in answers] == [*range(len(lines) + 3)]
        for answer in answers:
            if answer.place in bad:
                assert answer.status == 422 and [*json.loads(answer.body)] == ["detail"], answer
            else:
                assert answer.status == 200 and json.loads(answer.body) == rounded(next(expected))


@pytest.mark.parametrize("kind", ["classify", "tag", "fill"])
def test_all_that_a_server_predicts_shares_a_network(
    kind: Kind, folders: dict[Kind, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[load.__module__]
    files, read = list[Path](), vars(module)["read"]
    monkeypatch.setattr(module, "read", lambda file: (files.append(file), read(file))[1])
    services(folders[kind])
    assert files == [folders[kind] / "checkpoint.ckpt"]
    tasks = [load(files[0])[0] for _ in range(2)]
    assert tasks[0] is not tasks[1], "a network is shared after the server has started"


def test_a_text_that_is_longer_than_in_training_is_refused_or_cut(folders: dict[Kind, Path]) -> None:
    long = json.dumps({"text": "film " * 100}).encode()
    for service in services(folders["classify"]).lines.values():
        [answer] = service.answers([long])
        reason = "has 100 symbols, and the longest text of training 62; shorten it, or serve with --overlong cut"
        assert answer == LineAnswer(0, 422, json.dumps({"detail": reason}))
    for service in services(folders["classify"], overlong="cut").lines.values():
        assert [answer.status for answer in service.answers([long])] == [200]


def test_an_empty_text_has_an_empty_answer(folders: dict[Kind, Path]) -> None:
    served = services(folders["classify"]).lines
    empty = [answer.body for service in served.values() for answer in service.answers([b'{"text": " "}'])]
    assert empty == ['{"label": null, "probabilities": null}', '{"vector": null}']
    [answer] = services(folders["translate"]).lines["translate"].answers([b'{"text": ""}'])
    assert answer.body == '{"text": ""}'


def test_a_text_that_the_network_fails_on_spoils_no_other(
    folders: dict[Kind, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services(folders["classify"]).lines["classify"]
    outputs, encode = service.writer.outputs, service.writer.encode
    lines = [json.dumps({"text": text}).encode() for text in ("Yes.", "fails", "No one answered", "is not read")]
    expected = [answer for answer in sorted(service.answers(lines)) if answer.place in (0, 2)]

    def failing(rows: Any, padding_mask: Any, padded: bool, texts: Sequence[tuple[str, ...]]) -> Any:
        if ("fails",) in texts:
            raise RuntimeError("a\nb")
        return outputs(rows, padding_mask, padded, texts)

    def unread(text: str) -> Any:
        if text == "is not read":
            raise IndexError("c")
        return encode(text)

    monkeypatch.setattr(service.writer, "outputs", failing)
    monkeypatch.setattr(service.writer, "encode", unread)
    answers = sorted(service.answers(lines))
    assert [answer.status for answer in answers] == [200, 500, 200, 500]
    for place, reason in ((1, "a b"), (3, "c")):
        assert json.loads(answers[place].body) == {"detail": f"the network failed on this text: {reason}"}
    for answer, alone in zip((answers[0], answers[2]), expected, strict=True):
        assert json.loads(answer.body) == rounded(json.loads(alone.body))


class Sized(LineService):
    """Answers that tell how many texts were read together. status: of all answers."""

    status = 200

    def computed(self, group: Sequence[Any]) -> Iterator[LineAnswer]:
        for place, _ in group:
            yield LineAnswer(place, self.status, json.dumps({"detail": f"{len(group)} texts"}))


def test_the_gate_refuses_a_network_whose_answers_depend_on_other_texts(
    folders: dict[Kind, Path], tmp_path: Path
) -> None:
    service = Sized(services(folders["classify"]).lines["classify"].writer)
    with pytest.raises(ConfigError, match=r'^gate: served is {"detail": "1 texts"}, and offline .*; serve a network'):
        check(service)
    with pytest.raises(
        ConfigError, match="this processor rounds bfloat16 differently in other batches; serve in float"
    ):
        check(service, "bfloat16")
    service.status = 500
    with pytest.raises(ConfigError, match=r"^gate: 1 texts$"):
        check(service)
    tiny_run("classify", tmp_path)
    short = services(tmp_path).lines["classify"]
    short.writer.longest = 2
    with pytest.raises(ConfigError, match=r"^gate: it answers fewer than two of the texts that are compared"):
        check(short)


def test_a_text_is_continued_as_the_command_does(folders: dict[Kind, Path]) -> None:
    writer = TextWriter(folders["generate"] / "checkpoint.ckpt")
    expected = "".join(writer.write("blå", 20, SamplingConfig(temperature=0.8, top_k=3, top_p=1.0, seed=7)))
    served = services(folders["generate"])
    assert served.lines == {} and served.writer is not None
    for _ in range(2):
        *read, end = pieces(served.writer, Prompt("blå", 20, 0.8, 3, 1.0, 7))
        assert "".join(piece.text for piece in read) == expected and len(read) > 10
        assert end == TextPiece("", True) and not any(piece.end for piece in read)
    assert [*pieces(served.writer, Prompt("\ud800", 2, 0.8, 0, 1.0, 0))] == [
        TextPiece("prompt: UTF-8 cannot write character 1; type another", True, 422)
    ]
