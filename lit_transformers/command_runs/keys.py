"""The keys of runs of commands. They cover the inputs that change a run's numbers: the config, the content of the
source folder and of the data files, and the code of the suite by which numbers are read.

Programs and packages that the command uses from elsewhere are not covered, and neither are variables of the environment
that the config does not set.
"""

from __future__ import annotations

from lit_transformers.command_runs.config import CommandRunConfig
from lit_transformers.command_runs.source_folder import data_hash, source_files, source_hash
from lit_transformers.config import ConfigError, canonical_hash
from lit_transformers.source_code import read, source

__all__ = ["code_of_reading", "folders_and_files", "run_key"]

CODE = ("lit_transformers.command_runs.placeholders", "lit_transformers.command_runs.values")
"""The modules that a command is called and its numbers are read by."""
FREE = ("search", "short", "budgets", "repeats_within", "resume")
"""The fields that change no number of a run."""


def run_key(config: CommandRunConfig) -> str:
    """Returns the key of a run: a hash of its config, of the content of its folder and of its data. Raises ConfigError
    for a folder or a file that is not there."""
    plain = {name: value for name, value in config.to_dict().items() if name not in FREE}
    if config.folder is not None:
        plain["folder"] = source_hash(config)
    plain["training"] = {name: value for name, value in plain["training"].items() if name != "device"}
    return canonical_hash({"config": plain, "data": data_hash(config), "code": code_of_reading()})


def code_of_reading() -> str:
    """Returns a hash of the code of the suite that the numbers of a run depend on."""
    hashes = []
    for module in CODE:
        path = source(module)
        if path is None:
            raise ConfigError(f"the code of {module} cannot be read")
        hashes.append(read(path)[0])
    return canonical_hash(hashes)


def folders_and_files(config: CommandRunConfig) -> list[str]:
    """Returns the files of the source folder, and the folders that they lie in: a file that is added to one of these
    changes the key, too."""
    places = [entry.place for entry in source_files(config)]
    return sorted({str(path) for place in places for path in (place, place.parent)})
