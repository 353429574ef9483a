"""Fuzz targets of options and names: times, sizes, clusters, storages, stores, plug-ins, callbacks, studies,
project files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from fuzz.garbage import TEXTS, cut_and_patched, names, yaml_texts
from fuzz.target import target
from hypothesis import strategies as st

from ablations import catalog
from lit_transformers.class_path import import_class
from lit_transformers.cli.callback_options import LOGGERS, callback_assignments, chosen_loggers
from lit_transformers.config import ConfigError, parse_assignments
from lit_transformers.inference.predictor import LineTexts
from lit_transformers.plugins import locate
from lit_transformers.project import FILE, read_project
from sweeps.launchers.limits import parse_bytes, parse_seconds, write_seconds
from sweeps.launchers.ray_cluster import parse_ray_options
from sweeps.launchers.slurm import Cluster, parse_parameters
from sweeps.ledger.storage import find_address
from sweeps.object_store import CACHE, Store, prepared, store_at, store_of

PLACE = "--option"
digits = st.one_of(
    st.integers(0, 10**6).map(str), st.sampled_from(["0", "0.5", "1e3", "9" * 400, "9" * 5000, "٣", "²"])
)
amounts = st.one_of(
    st.builds(
        "{}{}".format, digits, st.sampled_from(["s", "m", "h", "d", "", " ", "GiB", "MB", "k", "KiB", "x", "h30m"])
    ),
    yaml_texts,
    TEXTS,
)


@target("--time-limit TIME", {"text": "9" * 400}, text=amounts)
def time_limit(text: str) -> None:
    seconds = parse_seconds(text, PLACE)
    assert 0 < seconds < math.inf
    if 0.001 < seconds < 10**12:
        assert math.isclose(parse_seconds(write_seconds(seconds), PLACE), seconds, rel_tol=1e-5, abs_tol=1e-3)


@target("--memory-limit SIZE", {"text": "9" * 400}, text=amounts)
def memory_limit(text: str) -> None:
    assert parse_bytes(text, PLACE) >= 1


def assignments(*known: str) -> st.SearchStrategy[list[str]]:
    """Words of NAME=VALUE, most with a name that there is."""
    sound = st.builds("{}={}".format, st.sampled_from(known), amounts)
    words = st.builds("{}={}".format, names([*known]), st.one_of(amounts, TEXTS))
    return st.lists(st.one_of(sound, sound, words, TEXTS), min_size=1, max_size=2)


@target(
    "predict --lines json",
    {"line": '["\\ud800", "b"]'},
    line=st.one_of(TEXTS, yaml_texts, st.lists(TEXTS, max_size=3).map(json.dumps)),
)
def lines_of_json(line: str) -> None:
    assert "".join(LineTexts(("first", "second"), "json").of(line)).encode() is not None


@target(
    "--slurm NAME=VALUE",
    {"words": ["nodes=²"]},
    {"words": ["nodes=" + "9" * 5000]},
    {"words": ["nodes=0"]},
    words=assignments("partition", "time", "mem", "gpus_per_node", "nodes", "cpus_per_task"),
)
def slurm(words: list[str]) -> None:
    parameters = parse_parameters(words)
    assert {word.partition("=")[0] for word in words} == {*parameters}
    assert Cluster(parameters, None, ()).nodes >= 1


@target(
    "--ray NAME=VALUE",
    {"words": ["gpus=-1"]},
    words=assignments("address", "cpus", "gpus", "memory", "nodes", "working_dir", "runtime_env"),
)
def ray(words: list[str]) -> None:
    cluster = parse_ray_options(words)
    assert cluster.cpus >= 1 and cluster.nodes >= 1 and (cluster.gpus is None or 0 <= cluster.gpus < math.inf)


addresses = st.one_of(
    st.builds(
        "{}://{}{}{}".format,
        st.sampled_from(["sqlite", "postgresql", "grpc", "mysql", "", "sqlite+x", "https", "postgresql+psycopg"]),
        st.one_of(
            TEXTS, st.sampled_from(["/", "user@host", "user:a/b@host", "host", "/tmp/", "[::1]", "host:99999999"])
        ),
        st.one_of(st.just(""), digits.map(":{}".format), TEXTS),
        st.one_of(st.just(""), TEXTS.map("/{}".format)),
    ),
    TEXTS,
    yaml_texts,
    st.sampled_from(["sqlite:////tmp/ledger.db", "grpc://host:13000", "postgresql://user@host/ledger"])
    .map(str.encode)
    .flatmap(cut_and_patched)
    .map(lambda content: content.decode("latin-1")),
)


@target("--storage URL", {"url": "postgresql:///\ud800"}, url=addresses)
def storage(url: str) -> None:
    address = find_address(url, Path("runs"))
    assert address.name.startswith("ledger") and address.url


SECRET = "s3cr3t"
secrets = st.one_of(
    st.sampled_from(["", "", "/x", "+a/b=", "@", "%2F", ":", "?a=b", " ", "#"]).map(SECRET.__add__),
    TEXTS.map(SECRET.__add__),
)
schemes = st.sampled_from(["file", "s3", "gs", "s3a", "memory", "local", "", "nosuch", "zip://a.zip::file"])
prefixes = st.one_of(
    st.sampled_from(
        ["bucket", "bucket/runs", "", "/", "bucket/a@b", "host:8080/a@b", "b/a:b@c", "[::1]:80/x", "bucket?x=1"]
    ),
    st.builds("bucket/{}".format, TEXTS),
    TEXTS,
)
logins = st.builds("{}:{}@".format, st.sampled_from(["key", "", "user", "key@home"]), secrets)
parameters = st.builds(
    "?{}={}".format, st.sampled_from(["password", "X-Amz-Signature", "sig", "a=1&access_token"]), secrets
)
stores = st.one_of(
    st.builds("{}://{}".format, schemes, prefixes),
    st.builds("{}://{}{}".format, schemes, logins, prefixes),
    st.builds("{}://{}{}".format, schemes, prefixes.filter(lambda prefix: "?" not in prefix), parameters),
    TEXTS,
)


@target("--runs ADDRESS", {"address": f"s3://key:{SECRET}/a+b@bucket/x"}, {"address": "file://bucket "}, address=stores)
def runs_address(address: str) -> None:
    try:
        store = store_at(address)
    except ConfigError as error:
        assert SECRET not in str(error), f"tells the password: {error}"
        raise
    assert SECRET not in address or f":{SECRET}" not in address, "an address with a password is taken"
    if not address.startswith("file://bucket"):  # others would use the network, or write outside the working folder
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, "copies")
        store = prepared(address)
        assert store_of(store.folder) == store and store.read("folder.id")


object_names = st.lists(
    st.one_of(
        st.sampled_from(["studies", "runs", "record.json", "..", ".", "", "C:", "a\\b", "~", "a b", "\0", "\n", "/"]),
        TEXTS,
    ),
    min_size=1,
    max_size=4,
).map("/".join)


@target("names of objects in a store", {"name": "studies/../../x"}, {"name": "//etc/passwd"}, name=object_names)
def object_name(name: str) -> None:
    Path("copy").mkdir(exist_ok=True)
    place = Store("file://bucket", Path("copy")).place(name)
    assert place.resolve().is_relative_to(Path("copy").resolve()) and place.relative_to("copy").as_posix() == name


modules = names(["my_parts", "my_parts.py", "./my_parts.py", "json", "lit_transformers", "lit_transformers.config"])


@target("--plugin FILE", name=st.one_of(modules, TEXTS, yaml_texts))
def plugin(name: str) -> None:
    Path("my_parts.py").write_text("")
    found_plugin = locate(name)
    assert found_plugin.module and (found_plugin.file is None or found_plugin.file.exists())


classes = names(["lightning.pytorch.callbacks.EarlyStopping", "lit_transformers.config:Config", "json.JSONDecoder"])


@target("class_path", class_path=st.one_of(classes, TEXTS))
def class_path(class_path: str) -> None:
    assert isinstance(import_class(class_path), type)


@target(
    "--callback CLASS{...}",
    words=st.lists(st.one_of(st.builds("{}{{{}}}".format, classes, yaml_texts), classes, TEXTS), max_size=2),
)
def callback(words: list[str]) -> None:
    changes = parse_assignments(callback_assignments(words))
    assert len(changes.get("training.callbacks", [])) == len(words)


@target("--logger NAME", words=st.lists(names([*LOGGERS]), max_size=2))
def logger(words: list[str]) -> None:
    assert {*chosen_loggers(words).names} <= {*words}


studies = st.one_of(
    names([*catalog.names(), "my_study", "studies/my_study.py", "./my_study.py", "my_study.py"]), TEXTS, yaml_texts
)


@target("STUDY", name=studies)
def study(name: str) -> None:
    Path("studies").mkdir(exist_ok=True)
    Path("studies", "my_study.py").write_text("ABLATION = None\n")
    assert catalog.find(name).is_file()


@target("ablations new NAME", name=st.one_of(studies, st.sampled_from(["folder/x.py", "run.yaml/x.py"])))
def new_study(name: str) -> None:
    path = catalog.write_new(name)
    try:
        assert path.stem.isidentifier() and "ABLATION" in path.read_text(encoding="utf-8")
        assert path.resolve().is_relative_to(Path.cwd().resolve()) or Path(name).is_absolute() or ".." in name
    finally:
        path.unlink()


LIT = b'plugins = ["my_parts.py", "json"]\nstudies = "studies"\n'
PYPROJECT = b'[project]\nname = "mine"\n\n[tool.lit-transformers]\n' + LIT


def settings(name: str) -> st.SearchStrategy[bytes]:
    """A line of TOML with any text behind a name."""
    return yaml_texts.map(lambda text: f"{name} = {text}".encode("utf-8", "surrogatepass"))


@target(
    "lit.toml",
    {"lit": b"studies = " + b"[" * 2000, "pyproject": None},
    lit=st.one_of(st.none(), cut_and_patched(LIT), settings("studies")),
    pyproject=st.one_of(st.none(), cut_and_patched(PYPROJECT), settings("tool")),
)
def project(lit: bytes | None, pyproject: bytes | None) -> None:
    folder = Path("project")
    folder.mkdir(exist_ok=True)
    for name, content in ((FILE, lit), ("pyproject.toml", pyproject)):
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)
    config = read_project(folder)
    assert isinstance(config.studies, str) and all(isinstance(name, str) for name in config.plugins)
