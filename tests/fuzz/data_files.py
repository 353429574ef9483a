"""Fuzz targets of files: records and their paths, texts, tokenizers, checkpoints, and folders of Hugging Face."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import torch
from fuzz.garbage import PLAIN, TEXTS, broken, cut_and_patched, json_files, names, yaml_texts
from fuzz.target import target
from hypothesis import strategies as st
from pyarrow import parquet

from datamodules.core.documents import SPLITS, Document
from datamodules.core.index import IndexedCorpus
from datamodules.core.tokenizers import BytesConfig, PretrainedTokenizerConfig, tokenizer_from_dict
from datamodules.labelled.labelled_records import LabelledRecordsConfig
from datamodules.labelled.questions import QuestionsConfig
from datamodules.pairs.catalogues import CataloguesConfig
from datamodules.pairs.paired_records import RecordPairsConfig
from datamodules.pairs.source import PairsRead
from datamodules.pairs.stored_pairs import texts_of
from datamodules.text.nested_records import texts_at
from datamodules.text.sources import FilesConfig
from lit_transformers.checked_files import VectorLayout
from lit_transformers.exchange.transfer import import_weights
from lit_transformers.inference.passage_states import PassageStates, PassageStatesWriter
from lit_transformers.inference.passages import PassageLine
from lit_transformers.training import checkpoints

CACHE = Path("cache")
"""The cache of data that are read once, in the working folder."""
QUESTIONS: dict[str, Any] = {
    "source": "a long text",
    "target": "a summary",
    "questions": [
        {"text": "who?", "responses": [{"text": "nobody", "score": 0.5}, {"text": "all"}]},
        {"text": "why?", "responses": [{"text": "because", "score": None}]},
    ],
    "document": {"title": "one", "a b": ["x", "y"], "": 1, "ä": True},
}
BINARY = {"source": "a", "target": "b", "image": b"\xff", "day": date(2024, 1, 31), "number": float("nan")}
JMESPATHS = ["source", "target", "questions[*].responses[0].text", "questions[].text", "document.title",
             'document."a b"', 'join(`"\\n"`, questions[*].text)', "questions[?text=='who?'].text | [0]",
             "length(questions)", "to_string(document)", "max_by(questions[0].responses, &score).text",
             "sort_by(questions, &text)[*].text", "{a: source, b: target}", "[source, target]", "@", "document.*",
             "keys(document)", "questions[::-1].text", "not_null(nothing, source)"]  # fmt: skip
ROWS = [
    {"source": f"a text, {number}", "target": f'its "target" {number}', "label": "yes" if number % 2 else "no"}
    for number in range(12)
]


def table(separator: str) -> bytes:
    """The rows as a table with a header."""
    quote = '"{}"'.format if separator == "," else str
    lines = [[*ROWS[0]], *([quote(str(cell).replace('"', '""')) for cell in row.values()] for row in ROWS)]
    return "".join(f"{separator.join(line)}\n" for line in lines).encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    """The rows as a file of parquet."""
    stream = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), stream)
    return stream.getvalue()


def packed(name: str, content: bytes) -> bytes:
    """A tar with one file, which it stores twice, and a link of either kind to it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for _ in range(2):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for kind, target in ((tarfile.LNKTYPE, name), (tarfile.SYMTYPE, Path(name).name)):
            link = tarfile.TarInfo(name.replace("rows", f"link{kind.decode()}"))
            link.type, link.linkname = kind, target
            archive.addfile(link)
    return stream.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    """A zip with one file, and one that is hidden."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, content)
        archive.writestr(f"__MACOSX/{name}", b"\0")
    return stream.getvalue()


def quoted() -> bytes:
    """The rows as a table with tabs whose cells stand in quotes where they need them."""
    stream = io.StringIO()
    csv.writer(stream, delimiter="\t").writerows([[*ROWS[0]], *(row.values() for row in ROWS)])
    return stream.getvalue().encode()


def lines_of(rows: Any) -> bytes:
    """Plain data as lines of JSON."""
    return "".join(f"{json.dumps(row)}\n" for row in (rows if isinstance(rows, list) else [rows])).encode()


SOUND = {
    "rows.tsv": table("\t"),
    "rows.csv": table(","),
    "rows.jsonl": lines_of(ROWS),
    "rows.json": json.dumps(ROWS).encode(),
    "rows.parquet": as_parquet(ROWS),
    "rows.csv.gz": gzip.compress(table(",")),
    "rows.tar": packed("train/rows.jsonl", lines_of(ROWS)),
    "rows.zip": zipped("train/rows.csv", table(",")),
    "quoted.tsv": quoted(),
    "marked.csv": b"\xef\xbb\xbf" + table(","),
    "wide.jsonl": lines_of(ROWS).decode().encode("utf-16"),
}
column = st.one_of(
    st.sampled_from(["source", "target", "label"]), st.integers(-1, 5), names(["source", "target"]), TEXTS
)
record_files = st.one_of(
    st.sampled_from(sorted(SOUND.items())),
    st.sampled_from(sorted(SOUND)).flatmap(lambda name: st.tuples(st.just(name), cut_and_patched(SOUND[name]))),
    broken(ROWS).map(lambda rows: ("rows.jsonl", lines_of(rows))),
    broken(ROWS).map(lambda rows: ("rows.json", json.dumps(rows).encode())),
    PLAIN.map(lambda plain: ("rows.jsonl", lines_of(plain))),
)


@target(
    "a JMESPath in nested records",
    {"path": "[" * 2000, "record": {}},
    {"path": "9" * 5000, "record": {}},
    path=st.one_of(names(JMESPATHS), TEXTS, yaml_texts),
    record=broken(QUESTIONS),
)
def jmespath(path: str, record: Any) -> None:
    RecordPairsConfig(path="rows.json", source=path, target="the other")
    for values in (QUESTIONS, record):
        texts = texts_at(values, path, "rows.json:1")
        assert texts and all(isinstance(text, str) for text in texts)


@target(
    "records of pairs",
    {"file": ("rows.json", b"[" * 100_000), "source": "source", "options": {}},
    {"file": ("rows.jsonl", b'{"source": "\\ud800", "target": "b"}'), "source": "source", "options": {}},
    {"file": ("rows.jsonl", b'{"source": NaN, "target": "b"}'), "source": "to_string(source)", "options": {}},
    {"file": ("rows.parquet", as_parquet([BINARY])), "source": "to_string(image)", "options": {}},
    file=record_files,
    source=column,
    options=st.fixed_dictionaries(
        {},
        optional={
            "header": st.sampled_from([None, True, False]),
            "quoting": st.sampled_from([None, True, False]),
            "separator": st.sampled_from([None, ",", ";", "\n", '"', "ä"]),
            "records": st.one_of(st.none(), names(JMESPATHS)),
            "incomplete": st.sampled_from(["refuse", "leave_out"]),
        },
    ),
)
def pairs(file: tuple[str, bytes], source: Any, options: dict[str, Any]) -> None:
    config = RecordPairsConfig(path=put(*file), source=source, target="target", splits="hash", test=0.3, **options)
    with empty_cache():
        corpus = config.corpus()
        sources = [
            texts_of(document).source for split in SPLITS if corpus.count(split) for document in corpus.documents(split)
        ]
        assert all(text.strip() for text in sources)
        read = config.open(PairsRead(BytesConfig(), None, (), None))
        assert [len(read.pair("train", ordinal).source) > 0 for ordinal in range(read.count("train"))]


@target("records of labelled texts", file=record_files, text=column, length=st.integers(7, 40))
def labelled(file: tuple[str, bytes], text: Any, length: int) -> None:
    config = LabelledRecordsConfig(
        path=put(*file), text=text, labels=("yes", "no"), splits="hash", validation=0.3, length=length
    )
    with empty_cache():
        examples = config.build()
        for ordinal in range(examples.count("train")):
            example = examples.example("train", ordinal)
            assert example.label in (0, 1) and len(example.symbols) <= length


QUESTION = {"question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}], "id": "q"}
PASSAGES = [f"Ada, not Bob, built house {number} — so it was." for number in range(24)]
QUESTION_FILES = {
    "questions.json": json.dumps({"data": [{"paragraphs": [{"context": p, "qas": [QUESTION]} for p in PASSAGES]}]}),
    "questions.jsonl": "".join(f"{json.dumps(QUESTION | {'context': passage})}\n" for passage in PASSAGES),
}


@target(
    "questions on passages",
    file=st.sampled_from(sorted(QUESTION_FILES)).flatmap(
        lambda name: st.tuples(st.just(name), cut_and_patched(QUESTION_FILES[name].encode()))
    ),
    length=st.integers(8, 40),
    stride=st.integers(1, 20),
    misplaced=st.sampled_from(["refuse", "leave_out"]),
)
def questions(file: tuple[str, bytes], length: int, stride: int, misplaced: Any) -> None:
    config = QuestionsConfig(
        path=put(*file), language=None, length=length, stride=stride, misplaced=misplaced, validation=0.3
    )
    with empty_cache():
        examples = config.build()
        for ordinal in range(examples.count("train")):
            example = examples.example("train", ordinal)
            assert len(example.symbols) < length and example.passage is not None
            start, stop = example.label
            text = example.passage.text[example.passage.spans[start + 1, 0] : example.passage.spans[stop, 1]]
            assert not text or text == example.passage.answers[0].strip()


TEXT_FILES = SOUND | {
    "text.txt": "Ein Satz. Änderung\n\nzwei Sätze.\n".encode() * 20,
    "text.txt.gz": gzip.compress(b"a line\n" * 40),
}


@target(
    "files of text",
    {"file": ("rows.parquet", b"\0" + SOUND["rows.parquet"]), "column": "source", "splits": "hash", "piece": 64},
    {"file": ("rows.tar", SOUND["rows.tar"][:512]), "column": "source", "splits": "hash", "piece": 64},
    file=st.sampled_from(sorted(TEXT_FILES)).flatmap(
        lambda name: st.tuples(st.just(name), st.one_of(cut_and_patched(TEXT_FILES[name]), st.just(TEXT_FILES[name])))
    ),
    column=st.one_of(st.just("source"), names(["source", "target"])),
    splits=st.sampled_from(["hash", "folders", "order"]),
    piece=st.sampled_from([64, 65, 100, 262_144]),
)
def texts(file: tuple[str, bytes], column: str, splits: Any, piece: int) -> None:
    with empty_cache():
        corpus = FilesConfig(
            path=put(*file), column=column, splits=splits, piece=piece, test=0.2, validation=0.2
        ).build()
        assert isinstance(corpus, IndexedCorpus)
        assert all(len(document.text) <= piece for document in documents_of(corpus))


CATALOGUE = """
msgid ""
msgstr "Content-Type: text/plain; charset=utf-8\\n"

#, python-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d archivo"
msgstr[1] "%d archivos"

#~ msgid "Gone"
#~ msgstr "Ido"

msgid "One"
msgstr "Uno"
"""


@target(
    "a catalogue of messages",
    {"content": 'msgid "a\u2028b\x85"\nmsgstr "c\u2028\x0cd"\n'.encode()},
    content=cut_and_patched(CATALOGUE.encode()),
)
def catalogue(content: bytes) -> None:
    with empty_cache():
        corpus = CataloguesConfig(path=put("messages.po", content), validation=0.3, test=0.3).corpus()
        assert all(all(texts_of(document).targets) for document in documents_of(corpus))


def documents_of(corpus: IndexedCorpus) -> Iterator[Document]:
    """All documents of a corpus, which may have none of a split."""
    return (document for split in SPLITS if corpus.count(split) for document in corpus.documents(split))


def put(name: str, content: bytes) -> str:
    """Writes a file to the working folder."""
    Path(name).write_bytes(content)
    return name


@contextmanager
def empty_cache() -> Iterator[None]:
    """A cache that is empty before, and whole after: data that were begun and then refused leave nothing there."""
    os.environ["LIT_CACHE"] = str(CACHE.resolve())
    shutil.rmtree(CACHE, ignore_errors=True)
    try:
        yield
    finally:
        halves = [path for path in CACHE.rglob("*") if path.suffix == ".part" or (path.is_dir() and path.suffix)]
        assert not halves, f"left half-written: {halves}"


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", ".", "sätze"]
VOCABULARY = "".join(f"{piece}\n" for piece in BERT).encode()


@cache
def tokenizer_json() -> dict[str, Any]:
    """The JSON of a trained byte-level tokenizer."""
    import tokenizers

    model = tokenizers.ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    model.train_from_iterator(["the cats sat. the cat"], vocab_size=270, special_tokens=specials, show_progress=False)
    plain: dict[str, Any] = json.loads(model.to_str())
    return plain


@target(
    "tokenizer.json or vocab.txt",
    file=st.one_of(
        st.deferred(lambda: json_files(tokenizer_json())).map(lambda content: ("tokenizer.json", content)),
        cut_and_patched(VOCABULARY).map(lambda content: ("vocab.txt", content)),
    ),
)
def tokenizer(file: tuple[str, bytes]) -> None:
    built = PretrainedTokenizerConfig(path=put(*file)).build([])
    symbols = built.encode("the cats sät. [SEP]".encode())
    assert all(0 <= symbol < built.vocabulary.size for symbol in symbols.tolist())
    assert isinstance(built.decode(symbols.tolist()), str)
    restored = tokenizer_from_dict(built.to_dict())
    assert (
        restored.vocabulary == built.vocabulary
        and restored.encode(b"the cat").tolist() == built.encode(b"the cat").tolist()
    )


@cache
def checkpoint() -> bytes:
    """A checkpoint with the least that one holds."""
    stream = io.BytesIO()
    torch.save({"lit_transformers": {"config": {}}, "state_dict": {"weight": torch.arange(6.0)}}, stream)
    return stream.getvalue()


@target("checkpoint.ckpt", content=st.deferred(lambda: cut_and_patched(checkpoint())))
def checkpoint_file(content: bytes) -> None:
    contents = checkpoints.read(Path(put("checkpoint.ckpt", content)))
    assert contents["state_dict"]["weight"].tolist() == [0, 1, 2, 3, 4, 5]


@cache
def states() -> dict[str, bytes]:
    """The files of a folder of states of three passages."""
    vectors = torch.arange(12.0).view(3, 4)
    with PassageStatesWriter(Path("states"), {"weights": "w"}, VectorLayout("float32", 4)) as writer:
        for line in range(1, 4):
            writer.add(PassageLine(line, "one two" * line), [(range(2), vectors * line), (range(1, 3), vectors)])
        writer.finish()
    return {path.name: path.read_bytes() for path in Path("states").iterdir()}


@st.composite
def damaged_states(draw: st.DrawFn) -> dict[str, bytes]:
    changed = draw(st.sampled_from([name for name in states() if name != "lock"]))
    return states() | {changed: draw(cut_and_patched(states()[changed]))}


@target("folder of states of passages", files=damaged_states())
def passage_states(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        put(f"states/{name}", content)
    stored = PassageStates(Path("states"), {"weights": "w"})
    assert [stored.passage(number) for number in range(3)] == [(n, "one two" * n) for n in (1, 2, 3)]
    for number in range(3):
        first, second = stored.windows_of(number)
        assert stored.states(first).flatten().tolist() == [(number + 1) * value for value in range(12)]
        assert stored.states(second).flatten().tolist() == [*range(12)]


@cache
def folder() -> dict[str, bytes]:
    """The files of a small GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    symbols = {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(n_positions=8, n_embd=4, n_layer=1, n_head=2, **symbols)).save_pretrained("sound")
    return {name: Path("sound", name).read_bytes() for name in ("config.json", "model.safetensors")}


@st.composite
def folders(draw: st.DrawFn) -> dict[str, bytes]:
    config = json_files(json.loads(folder()["config.json"]))
    weights = cut_and_patched(folder()["model.safetensors"])
    changed = draw(st.sampled_from(["config.json", "config.json", "model.safetensors"]))
    return folder() | {changed: draw(config if changed == "config.json" else weights)}


@target("import of a folder of Hugging Face", files=folders())
def imported(files: dict[str, bytes]) -> None:
    shutil.rmtree("gpt2", ignore_errors=True)
    shutil.rmtree("imported", ignore_errors=True)
    Path("gpt2").mkdir()
    for name, content in files.items():
        Path("gpt2", name).write_bytes(content)
    try:
        import_weights("gpt2", Path("imported"))
    except ValueError:
        assert not [*Path().glob("imported*")], "left half-written"
        raise
    assert Path("imported", "weights.safetensors").exists()
