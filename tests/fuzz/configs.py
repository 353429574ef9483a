"""Fuzz targets of configs: overrides as typed and from Python, files of runs, output of ``config``, and commands."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from fuzz.garbage import PLAIN, TEXTS, broken, cut_and_patched, names, one_line, python_values, yaml_texts
from fuzz.target import target
from hypothesis import strategies as st

from ablations.__main__ import main
from lit_transformers.cli.printed_config import print_config, read_target, with_values
from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.config import Config, ConfigError, parse_assignments
from lit_transformers.kinds import places
from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.run_file import read_run
from lit_transformers.runs import RunConfig
from lit_transformers.trust import MODULES, class_paths_in

CONFIGS: list[Config] = [
    RunConfig(),
    *(RunConfig().override({"model.mixer": kind}) for kind in ("window", "lsh", "linear", "top_k")),
    RunConfig().override({"model.stack": "universal", "training.optimizer": "sgd", "model.positions": "sinusoidal"}),
]
BORING = "lightning.pytorch.demos.boring_classes."
FILES = [
    *(config.to_dict() for config in CONFIGS),
    LightningRunConfig(
        model={"class_path": f"{BORING}BoringModel"}, data={"class_path": f"{BORING}BoringDataModule"}
    ).to_dict(),
    CommandRunConfig(command="train {rate} {seed}", params={"rate": 0.1}, metrics={"loss": "minimize"}).to_dict(),
]
"""The contents of files of runs: of models of this library, of a LightningModule and of a command."""
INNER = ["model", "model.mixer", "model.stack", "data", "data.source", "task", "training", "training.optimizer"]
PATHS = [[path for path, _ in config.leaves()] + INNER for config in CONFIGS]
KINDS = sorted({f"{place.path}={kind}" for place in places(RunConfig) for kind in place.kinds})
STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig(),
    factors={"recurrence": {"on": {}, "off": {"model.mixer.memory": 0}}},
    metric=Metric("val/bpb", goal="minimize"),
)
"""
STANDIN = ["model.width", "model.heads", "model.mixer", "model.mixer.encoding.clamp", "data.segment", "data.path",
           "training.steps", "training.pause", "training.fault", "seed"]  # fmt: skip
config_numbers = st.integers(0, len(CONFIGS) - 1)


@st.composite
def likely_overrides(draw: st.DrawFn) -> tuple[str, Any]:
    """A path and a value of one of the configs, or a number near it."""
    leaves = dict(CONFIGS[draw(config_numbers)].leaves())
    path = draw(st.sampled_from([path for path in leaves if not path.endswith("kind")]))
    value = leaves[path]
    return path, draw(st.integers(-1, 3).map(lambda step: value + step) if type(value) is int else st.just(value))


@st.composite
def typed_overrides(draw: st.DrawFn) -> tuple[int, list[str]]:
    number = draw(config_numbers)
    if draw(st.booleans()):
        path, value = draw(likely_overrides())
        return number, [f"{path}={json.dumps(value)}"]
    words = st.builds("{}={}".format, names(PATHS[number]), yaml_texts)
    return number, draw(st.lists(st.one_of(words, words, words, TEXTS), min_size=1, max_size=2))


@target("--set PATH=VALUE", typed=typed_overrides())
def typed_override(typed: tuple[int, list[str]]) -> None:
    number, words = typed
    try:
        changes = parse_assignments(words)
    except ConfigError as error:
        places = ["write path=value", *(flat(word.partition("=")[0]) for word in words if "=" in word)]
        assert any(place in str(error) for place in places), str(error)
        raise
    assert set(changes) == {word.partition("=")[0].strip() for word in words}
    refused_or_held(CONFIGS[number], changes)


@st.composite
def python_overrides(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    number = draw(config_numbers)
    if draw(st.booleans()):
        return number, dict([draw(likely_overrides())])
    return number, draw(st.dictionaries(names(PATHS[number]), python_values, min_size=1, max_size=2))


@target("override() in Python", changed=python_overrides())
def python_override(changed: tuple[int, dict[str, Any]]) -> None:
    refused_or_held(CONFIGS[changed[0]], changed[1])


def written(plain: Any) -> bytes:
    """A file of plain data in YAML, or in JSON, which YAML reads too."""
    try:
        return yaml.dump(plain, Dumper=yaml.CSafeDumper, sort_keys=False).encode(errors="surrogatepass")
    except (yaml.YAMLError, UnicodeEncodeError):
        return json.dumps(plain).encode()


run_files = st.one_of(
    st.sampled_from(FILES).flatmap(broken).map(written),
    st.sampled_from(FILES).flatmap(broken).map(lambda plain: json.dumps(plain).encode()),
    st.sampled_from(FILES).map(written).flatmap(cut_and_patched),
    PLAIN.map(written),
    yaml_texts.map(lambda text: text.encode(errors="surrogatepass")),
)


@target("run.yaml of fit", {"content": b"[" * 100_000}, content=run_files)
def run_file(content: bytes) -> None:
    path = Path("run.yaml")
    path.write_bytes(content)
    config = read_run(path)
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert read_run(path) == config


stranger_modules = ["stranger", "stranger.inner", "lightning_stranger", "torch.nn.stranger", "lightning.stranger"]
known_modules = ["lightning", "lightning.pytorch.cli", BORING[:-1], "torch.nn", "torch.hub", "subprocess", "os"]
class_paths = st.one_of(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(stranger_modules + known_modules),
        st.sampled_from([".", ":", ".os.", ".os:"]),
        st.sampled_from(["Popen", "system", "Net", "BoringModel", "Linear", "LightningCLI", "OrderedDict", "load"]),
    ),
    TEXTS,
)
objects = st.recursive(
    st.builds(lambda path: {"class_path": path}, class_paths),
    lambda inner: st.one_of(
        st.builds(lambda path, argument: {"class_path": path, "init_args": {"x": argument}}, class_paths, inner),
        st.builds(lambda path, value: {"class_path": path, "init_args": {"x": [{"y": value}]}}, class_paths, inner),
    ),
    max_leaves=3,
)
runs_of_classes = st.one_of(
    st.builds(lambda model: {"model": model}, objects),
    st.builds(lambda data: {"model": {"class_path": f"{BORING}BoringModel"}, "data": data}, objects),
    st.builds(lambda path: CONFIGS[0].to_dict() | {"training": {"callbacks": [{"path": path}]}}, class_paths),
)


@target(
    "classes in run.yaml",
    {"plain": {"model": {"class_path": "stranger.Net"}}},
    {
        "plain": {
            "model": {"class_path": f"{BORING}BoringModel", "init_args": {"x": {"class_path": "subprocess:Popen"}}}
        }
    },
    plain=runs_of_classes,
)
def classes_of_a_run(plain: dict[str, Any]) -> None:
    Path("stranger").mkdir(exist_ok=True)
    for path in ("stranger/__init__.py", "stranger/inner.py", "lightning_stranger.py"):
        Path(path).write_text("class Net: pass\n")
    path = Path("run.yaml")
    path.write_bytes(written(plain))
    try:
        read_run(path)
    finally:
        assert not {name for name in sys.modules if "stranger" in name}, "a stranger's module was imported"
    modules = {path.rpartition(":" if ":" in path else ".")[0] for path in class_paths_in(plain)}
    assert all(f"{module}.".startswith(tuple(f"{allowed}." for allowed in MODULES)) for module in modules)


@st.composite
def printed(draw: st.DrawFn) -> tuple[str, list[str]]:
    kind = draw(names(KINDS))
    words = st.builds("{}={}".format, names(["dim", "window", "memory", "path", "kind", "rank"]), yaml_texts)
    return kind, draw(st.lists(words, max_size=2))


@target("config RUN|KIND", typed=printed())
def printed_config(typed: tuple[str, list[str]]) -> None:
    name, words = typed
    path, config = read_target(name)
    changed = with_values(config, parse_assignments(words)) if words else config
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        print_config(changed, path, name)
    if isinstance(changed, Config):
        plain = read_yaml(output.getvalue())
        for part in path.split(".") if path else ():
            plain = plain[part]
        assert type(changed).from_dict(plain) == changed


option_words = st.one_of(
    st.builds(lambda name, text: ["--set", f"{name}={text}"], names(STANDIN), yaml_texts),
    st.builds(
        lambda option, text: [option, text],
        st.sampled_from(["--scale", "--seeds", "--device", "--runs", "--wat", "--set"]),
        st.one_of(TEXTS, yaml_texts),
    ),
    TEXTS.map(lambda text: [text]),
)


@target(
    "ablations plan ...",
    {"words": ["--set", "data.path=\x00"]},
    {"words": ["--set", 'data.path="\\ud800"']},
    {"words": ["--set", "training.steps=" + "9" * 5000]},
    words=option_words,
)
def command(words: list[str]) -> None:
    study = Path("memory_helps.py")
    study.write_text(STUDY)
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = main(["plan", str(study), "--runs", "runs", *words])
    message = errors.getvalue().rstrip("\n")
    if status == 0:
        assert not message or "planning" in message
        return
    assert status == 2 and message, (status, output.getvalue(), message)
    if message.startswith("error: "):
        assert one_line(message)
        raise ConfigError(message)
    assert "Usage:" in message and "Traceback" not in message
    raise ConfigError("the usage was shown")


def refused_or_held(config: Config, changes: Mapping[str, Any]) -> None:
    """Fails where an override is refused without naming a place, is not held as given, or changes something else."""
    try:
        overridden = config.override(changes)
    except ConfigError as error:
        places = [flat(path.partition(".")[0]) for path in changes] + [path for path, _ in config.leaves()]
        assert any(place in str(error) for place in places), str(error)
        raise
    for path, value in changes.items():
        if not any(longer.startswith(f"{path}.") for longer in changes):
            assert holds(value_at(overridden, path), value), f"{path}: {value_at(overridden, path)!r} for {value!r}"
    before = {path: value for path, value in config.leaves() if not is_below(path, changes)}
    after = dict(overridden.leaves())
    assert before == {path: after.get(path) for path in before}
    assert type(overridden).from_dict(yaml.load(overridden.to_yaml(), yaml.CSafeLoader)) == overridden


def is_below(path: str, changes: Mapping[str, Any]) -> bool:
    return any(path == changed or path.startswith(f"{changed}.") for changed in changes)


def value_at(config: Config, path: str) -> Any:
    """The value at a path; below a table of overrides, the rest of the path is one name."""
    table = "task.evaluation."
    return config.get(table[:-1])[path.removeprefix(table)] if path.startswith(table) else config.get(path)


def holds(held: Any, expected: Any) -> bool:
    """Whether a config holds the given value, or its long form."""
    if isinstance(held, Config):
        if isinstance(expected, str):
            return held.kind == expected
        return all(holds(held.kind if name == "kind" else held.get(name), value) for name, value in expected.items())
    if isinstance(expected, list | tuple):
        return len(held) == len(expected) and all(map(holds, held, expected))
    if isinstance(expected, float) and math.isnan(expected):
        return bool(math.isnan(held))
    return bool(held == expected) and isinstance(held, bool) == isinstance(expected, bool)


def flat(text: str) -> str:
    """The beginning of a text, with white space collapsed, that a one-line error is sure to contain."""
    return " ".join(text.split())[:100]
