"""Our own parts of every table pass the checks of ``check-plugin`` for parts from outside.

Mixers, and the gates and fields of networks, have separate tests; here are the checks without another test."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broken_parts import FAULTS, StaleConfig
from contract_cases import CASES, name

from datamodules import CORRUPTIONS, DATA, EXAMPLES, GENERATORS, NOISES, PAIRS, SOURCES, TOKENIZERS
from datamodules.core.documents import Shard
from lit_transformers.batch import PairBatch, needed_mask, needed_source_mask
from lit_transformers.checks import compression_parts, data_parts, network_parts, part_checks, training_parts
from lit_transformers.checks.contract import checks_of, run_check
from lit_transformers.compression import COMPRESSIONS
from lit_transformers.config import Config
from lit_transformers.decoding.decode import DECODINGS
from lit_transformers.plugins import table_of
from lit_transformers.tasks import TASKS
from lit_transformers.training.config import OPTIMIZERS, SCHEDULES

TOPICS = {"kind": "topics", "documents": 41, "sentences": 6, "validation": 0.3, "test": 0.1}
TEXT = {"source": TOPICS, "tokenizer": "words", "length": 24, "batch_size": 8, "window": 2}
COPY = {"kind": "strings", "generator": {"kind": "copy", "alphabet": 4}, "max_length": 6, "train": 50}
LISTOPS = {"kind": "listops", "train": 45, "validation": 19, "test": 9, "depth": 3, "shortest": 4, "longest": 40}
QUESTIONS = {"kind": "questions", "path": "{folder}/questions", "language": None, "length": 64, "stride": 16}
MORE_LISTOPS = LISTOPS | {"train": 90, "depth": 2}
SIZES = {"train": 120, "validation": 40, "test": 20}
DATA_CASES: Sequence[dict[str, Any]] = (
    {"kind": "language", "source": TOPICS, "segment_length": 64, "batch_size": 8},
    {"kind": "rows", "packing": "segment_pair", **TEXT},
    {"kind": "denoising", **TEXT},
    {"kind": "pairs", "source": COPY, "tokens_per_batch": 64, "window": 16},
    {"kind": "prompts", "source": COPY, "length": 24, "batch_size": 8, "window": 2},
    {"kind": "retrieval", "source": COPY, "batch_size": 8, "window": 2},
    {"kind": "labelled", "source": LISTOPS, "batch_size": 8, "window": 2},
    {"kind": "mixed", "sources": {"b": LISTOPS, "a": MORE_LISTOPS}, "batch_size": 8, "window": 4},
    {"kind": "generated", "max_length": 6, "lengths": "uniform", "batch_size": 8},
)
OF_NETWORKS = ("ENCODINGS", "POSITIONS", "STACKS", "FEEDFORWARDS", "TOKENS", "MODELS", "ADAPTERS")
PARTS: Mapping[str, tuple[dict[str, type[Any]], Sequence[Any]]] = {
    **{table: CASES[table] for table in OF_NETWORKS},  # type: ignore[dict-item]
    "TASKS": (TASKS, [*TASKS]),
    "OPTIMIZERS": (OPTIMIZERS, [*OPTIMIZERS]),
    "SCHEDULES": (SCHEDULES, [*SCHEDULES]),
    "DECODINGS": (DECODINGS, [*DECODINGS]),
    "COMPRESSIONS": (COMPRESSIONS, [*COMPRESSIONS]),
    "GENERATORS": (GENERATORS, [*GENERATORS]),
    "NOISES": (NOISES, [*NOISES]),
    "CORRUPTIONS": (CORRUPTIONS, [*CORRUPTIONS]),
    "TOKENIZERS": (
        TOKENIZERS,
        [*(kind for kind in TOKENIZERS if kind != "pretrained"), {"kind": "pretrained", "path": "{folder}/vocab.txt"}],
    ),
    "DATA": (DATA, DATA_CASES),
    "EXAMPLES": (
        EXAMPLES,
        [
            LISTOPS,
            {"kind": "masked_sum", "length": 20, **SIZES},
            {"kind": "needle", "length": 12, "distance": 3, **SIZES},
            {"kind": "facts", "entities": 3, "questions": 12, **SIZES},
            {"kind": "reviews", "path": "{folder}/labelled", "length": 40},
            {"kind": "labelled_texts", "path": "{folder}/labelled", "labels": ["neg", "pos"]},
            {"kind": "conll", "path": "{folder}/tagged"},
            QUESTIONS,
        ],
    ),
    "PAIRS": (
        PAIRS,
        [
            COPY,
            {"kind": "parallel", "path": "{folder}/parallel"},
            {"kind": "jsonl", "path": "{folder}/pairs"},
            {"kind": "records", "path": "{folder}/pairs"},
        ],
    ),
    "SOURCES": (
        SOURCES,
        [
            TOPICS,
            {"kind": "lags", "documents": 60, "length": 300, "validation": 0.3, "test": 0.2},
            {"kind": "periodic", "width": 12, "height": 10, "period": 2, "images": 60, "validation": 0.2, "test": 0.2},
            {"kind": "files", "path": "{folder}/texts", "splits": "folders"},
            {"kind": "files", "path": "{folder}/texts", "splits": "order"},
            {"kind": "books", "path": "{folder}/texts"},
            {"kind": "wikitext", "path": "{folder}/wiki"},
            {"kind": "translations", "pairs": {"kind": "parallel", "path": "{folder}/parallel"}},
            {
                "kind": "labelled_training",
                "labelled": {"kind": "labelled_texts", "path": "{folder}/labelled", "labels": ["neg", "pos"]},
                "validation": 0.2,
            },
        ],
    ),
}
QUICK = ("OPTIMIZERS", "SCHEDULES", "COMPRESSIONS", "GENERATORS", "NOISES", "CORRUPTIONS", "TOKENIZERS")
"""Tables of which every case is a quick test; of others the first one."""
ELSEWHERE = {
    "SOURCES": {"stdlib": "test_sources.py: thousands of files", "hub": "test_hub.py: takes the package datasets"},
    "EXAMPLES": dict.fromkeys(("choices", "squad_choices"), "test_multiple_choice.py: records and a file of SQuAD")
    | {"sentences": "tests/lit_transformers/test_classification.py: files in the layouts of four corpora"},
    "PAIRS": dict.fromkeys(
        ("multi30k", "catalogues", "messages", "qmsum", "scitldr", "scisummnet", "hub", "docstrings"),
        "test_pairs_sources.py: files in the layouts of their corpora",
    )
    | {"squad": "test_retrieval.py: a file in its layout"},
}
"""Kinds that are no case here, by their table, and where their tests are."""
OF_FILES = ("labelled_texts", "records", "conll", "questions")
"""Kinds with fields that act on tables, incomplete records or other files alone: test_records_source.py,
test_conll.py, test_questions.py."""
PROVEN_ELSEWHERE = {
    "gates": "test_gates.py and test_promises.py",
    "every field has an effect": "test_fields.py and test_training_fields.py",
    "ranks share the batches of one": "test_any_reader.py",
    "workers make the same batches": "test_any_reader.py",
    "resumes in the middle": "test_any_reader.py",
}
"""Checks that other tests ask of more parts of ours, with more batches."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of text, of pairs and of labelled texts, all of different lines, and a vocabulary."""
    folder, random = tmp_path_factory.mktemp("own"), Random(0)

    def line() -> str:
        return " ".join(random.choice(["the", "cat", "sat", "on", "a", "mat", "naïve"]) for _ in range(9))

    def write(name: str, *lines: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")

    for split, count in (("train", 30), ("validation", 9), ("test", 6)):
        for number in range(count // 3):
            write(f"texts/{split}/{number}.txt", *(line() for _ in range(40)))
        write(f"wiki/wiki.{split}.tokens", *(f" \n = Title {split} {n} = \n \n {line()} " for n in range(count)))
        write(f"parallel/{split}.en", *(sources := [line() for _ in range(count)]))
        write(f"parallel/{split}.de", *(text.upper() for text in sources))
        write(f"pairs/{split}.jsonl", *(json.dumps({"source": text, "target": text[::-1]}) for text in sources))
        labelled = [{"text": line(), "label": random.choice(["neg", "pos"])} for _ in range(4 * count)]
        write(f"labelled/{split}.jsonl", *map(json.dumps, labelled))
        tags = [[random.choice(["O", "B-x", "B-y"]) for _ in range(9)] for _ in range(2 * count)]
        sentences = [zip(line().split(), own, strict=True) for own in tags]
        write(f"tagged/{split}.conll", *("".join(f"{word}\t{tag}\n" for word, tag in own) for own in sentences))
        passages = [line() for _ in range(count)]
        answers = [[text.split()[random.randrange(9)]] * random.randint(0, 1) for text in passages]
        asked = [
            {"question": f"What is {n}?", "context": text, "answers": own}
            for n, (text, own) in enumerate(zip(passages, answers, strict=True))
        ]
        write(f"questions/{split}.jsonl", *map(json.dumps, asked))
    write("vocab.txt", *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "."))
    return folder


def parts() -> Iterator[Any]:
    for table, (_, cases) in PARTS.items():
        for number, case in enumerate(cases):
            label = (
                name(case)
                if isinstance(case, Config)
                else case
                if isinstance(case, str)
                else f"{case['kind']}-{number}"
            )
            is_quick = table in (
                "OPTIMIZERS",
                "SCHEDULES",
                "COMPRESSIONS",
                "GENERATORS",
                "NOISES",
                "CORRUPTIONS",
                "TOKENIZERS",
            )
            marks = [] if is_quick or number == 0 else [pytest.mark.slow]
            yield pytest.param(table, case, id=f"{table}-{label}", marks=marks)


def placed(plain: Any, folder: Path) -> Any:
    """A config as plain data, with its paths in the folder."""
    if isinstance(plain, dict):
        return {key: placed(value, folder) for key, value in plain.items()}
    return plain.replace("{folder}", str(folder)) if isinstance(plain, str) else plain


@pytest.mark.parametrize(("table", "case"), [*parts()])
def test_a_part_of_ours_keeps_the_contract(
    table: str, case: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    if not isinstance(case, Config):
        kinds = PARTS[table][0]
        plain = {"kind": case} if isinstance(case, str) else placed(case, folder)
        case = kinds[plain["kind"]].from_dict({key: value for key, value in plain.items() if key != "kind"})
    left_out = (
        {*PROVEN_ELSEWHERE} if table not in ("TASKS", "GENERATORS", "NOISES", "CORRUPTIONS", "SOURCES") else set()
    )
    left_out |= {"every field changes the content"} if case.kind in OF_FILES else set()
    asked = [(check, run) for check, run in checks_of(case) if check not in left_out]
    results = [gate for check, run in asked for gate in run_check(check, run)]
    assert len(results) > 2 and not [f"{gate.name}: {gate.detail}" for gate in results if not gate.passed]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["kind"]) for case in DATA_CASES])
def test_a_batch_says_that_it_is_padded_where_it_is_and_there_alone(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    data = DATA[case["kind"]].from_dict({key: value for key, value in case.items() if key != "kind"}).build()
    last_share = data.evaluation("validation")._replace(rank=Shard(6, 7))  # has batches of padding alone
    for batch in (*islice(data.training().batches(), 24), *last_share.batches()):
        assert batch.padded == (not batch.padding_mask.all())
        assert needed_mask(batch) is (batch.padding_mask if batch.padded else None)
        if isinstance(batch, PairBatch):
            assert batch.source_padded == (not batch.source_padding_mask.all())
            assert needed_source_mask(batch) is (batch.source_padding_mask if batch.source_padded else None)


@pytest.mark.parametrize("table", PARTS)
def test_every_kind_of_every_table_is_checked(table: str) -> None:
    kinds, cases = PARTS[table]
    checked = {
        case if isinstance(case, str) else case.kind if isinstance(case, Config) else case["kind"] for case in cases
    }
    assert checked.isdisjoint(ELSEWHERE.get(table, {})) and checked | {*ELSEWHERE.get(table, {})} == {*kinds}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_part_is_noticed_and_its_line_says_the_way_out(
    fault: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIT_CACHE", str(tmp_path))
    config, check, way_out = FAULTS[fault]
    path = str(folder / "parallel/train.en")
    case = config if isinstance(config, Config) else config(path=path) if config is StaleConfig else config()
    kinds = table_of(type(case))
    assert kinds is not None
    monkeypatch.setitem(kinds, case.kind, type(case))
    [gate] = run_check(check, dict(checks_of(case))[check])
    assert not gate.passed and way_out in gate.detail


def test_every_line_of_a_check_that_failed_says_the_way_out() -> None:
    lines = []
    for module in (part_checks, network_parts, training_parts, compression_parts, data_parts):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Broken":
                lines.append(ast.unparse(node.args[0]))
    assert len(lines) > 50 and [line for line in lines if "; " not in line] == []
