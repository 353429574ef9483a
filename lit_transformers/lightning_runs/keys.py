"""The keys of runs of LightningModules. They cover everything that changes a run's numbers: its config, the content of
the files that arguments name, the fingerprint that the data module states, and code.

The code is that of the modules of the named classes and of the modules of their projects that these import, and that of
the suite which trains and measures. Data whose place no argument names are not covered, unless the data module has a
``fingerprint``: a string, or a method that returns one.
"""

from __future__ import annotations

from pathlib import Path

from lit_transformers.class_path import split_class_path
from lit_transformers.config import Config, ConfigError, canonical_hash
from lit_transformers.lightning_runs.arguments import class_paths, files_named
from lit_transformers.lightning_runs.config import LightningRunConfig
from lit_transformers.runs.code import hash_of_modules, modules_on_path
from lit_transformers.runs.folder import Identity
from lit_transformers.runs.starting_weights import fingerprint
from lit_transformers.source_code import files_of_project, hashes_of_project

__all__ = ["ROOTS", "code_of", "data_content", "identity_of", "run_key", "source_files"]

ROOTS = ("lit_transformers.lightning_runs.train",)
"""The modules from which all code of the suite is imported that computes a run's numbers."""


def run_key(config: LightningRunConfig) -> str:
    """Returns the key of a run: a hash of its config, of its data's content and of the code of its numbers."""
    return _key(config)


def identity_of(config: LightningRunConfig) -> Identity:
    """Returns the identity that distinguishes the run from others in its folder."""
    trained = config.override({"data.evaluation.split": "validation"})
    return Identity(config, _key(config), _key(trained), code_of(config))


def _key(config: LightningRunConfig) -> str:
    plain = {name: value for name, value in config.to_dict().items() if name != "search"}
    files = {str(path): content_of(path) for path in files_named(plain["model"]["init_args"])}
    return canonical_hash({"config": plain, "data": data_content(config), "files": files, "code": code_of(config)})


def data_content(config: LightningRunConfig) -> str | None:
    """Returns a hash of the content of the data: of the ``fingerprint`` of the data module, and of the content of the
    files that its arguments name; None where there is neither. Raises ConfigError for a fingerprint that is no text."""
    data = config.data.build()
    offered = getattr(data, "fingerprint", None)
    offered = offered() if callable(offered) else offered
    if offered is not None and not isinstance(offered, str):
        raise ConfigError(f"the fingerprint of {type(data).__name__} is no text but {offered!r}", "data.class_path")
    files = {str(path): content_of(path) for path in files_named(config.data.init_args)}
    return canonical_hash([offered, files]) if offered is not None or files else None


def content_of(path: Path) -> str:
    """Returns a hash of a file, or of the names and contents of all files below a folder."""
    if path.is_file():
        return fingerprint(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return canonical_hash([[str(file.relative_to(path)), fingerprint(file)] for file in files])


def code_of(config: LightningRunConfig) -> str:
    """Returns a hash of the code that computes the run's numbers."""
    own = modules_on_path(config, ROOTS)
    projects = map(hashes_of_project, modules_of_classes(config))
    return hash_of_modules(own | {module: digest for project in projects for module, digest in project.items()})


def source_files(config: Config) -> list[Path]:
    """Returns the files of the modules that the config's class paths lead to, which are no part of the suite."""
    assert isinstance(config, LightningRunConfig)
    return sorted({file for module in modules_of_classes(config) for file in files_of_project(module).values()})


def modules_of_classes(config: LightningRunConfig) -> list[str]:
    """Returns the modules of the classes that a config names."""
    paths = class_paths(config.model.class_path, config.model.init_args)
    if config.data.class_path is not None:
        paths += class_paths(config.data.class_path, config.data.init_args)
    return sorted({split_class_path(path)[0] for path in paths})
