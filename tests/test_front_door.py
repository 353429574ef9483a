"""The front door of the library: the README, and ``from lit_transformers import ...``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from foreign_module import Net

import lit_transformers
from docs.blocks import Block, blocks_of
from lit_transformers import ConfigError, RunConfig, build_model, evaluate, fit, generate, load_checkpoint

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "own_text.yaml"
SMALL = {
    "model.dim": 16, "model.heads": 2, "model.depth": 1, "data.segment_length": 16, "data.batch_size": 2,
    "data.source.piece": 64, "data.evaluation.bytes": 64, "training.steps": 2, "training.schedule.warmup": 0,
    "training.device": "cpu",
}  # fmt: skip


def blocks(page: str) -> list[Block]:
    return blocks_of((ROOT / page).read_text(encoding="utf-8"), page)


def test_the_readme_shows_the_study_of_the_first_tutorial_and_its_answer() -> None:
    """The tutorial is run (``test_code_blocks``), and prints the output that the README shows."""
    readme, tutorial = blocks("README.md"), blocks("docs/tutorials/first_study.md")
    studies = [[block.text for block in page if block.file == "studies/how_far.py"] for page in (readme, tutorial)]
    assert studies[0] == studies[1] and len(studies[0]) == 1
    (answer,) = [block.output for block in readme if block.output is not None]
    assert any(answer in (block.output or "") for block in tutorial), "copy it from docs/tutorials/first_study.md"
    commands = "".join(block.text for block in readme if block.language == "sh")
    assert {"make demo", "python -m ablations run how_far"} <= {
        line.partition("#")[0].strip() for line in commands.splitlines()
    }


def test_the_readme_names_the_command_of_the_tests() -> None:
    assert "`make test`" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert 'make test VENV="$VENV"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_example_of_ones_own_text_trains_and_is_loaded_measured_and_writes(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("all that is written is written again\n" * 60)
    config = RunConfig.from_yaml(EXAMPLE).override({"data.source.path": str(text), **SMALL})
    record = fit(config, tmp_path / "run")
    assert record["outcome"] == "finished"
    checkpoint = tmp_path / "run" / "checkpoint.ckpt"
    assert evaluate(checkpoint)["val/bpb"] == pytest.approx(record["metrics"]["val/bpb"])
    written = generate(checkpoint, "all ", 3, temperature=0.0)
    assert written.startswith("all ") and len(written) > 4
    trained, fresh = load_checkpoint(str(checkpoint)), build_model(tmp_path / "run" / "run.yaml")
    assert not trained.training
    sizes = {name: value.shape for name, value in fresh.state_dict().items()}
    assert sizes == {name: value.shape for name, value in trained.state_dict().items()}


def test_a_lightning_module_is_trained_and_then_read_by_its_own_class(tmp_path: Path) -> None:
    plain = {
        "model": {"class_path": "foreign_module.Net"},
        "data": {"class_path": "foreign_module.Plane"},
        "training": {"steps": 2, "device": "cpu"},
    }
    assert fit(plain, tmp_path)["outcome"] == "finished"
    assert type(Net.load_from_checkpoint(tmp_path / "checkpoint.ckpt")) is Net
    for use in (load_checkpoint, evaluate, generate):
        with pytest.raises(ConfigError, match=r"checkpoint\.ckpt: holds a foreign_module.Net, which its own load_from"):
            use(tmp_path / "checkpoint.ckpt")
    with pytest.raises(ConfigError, match=r"model: is built by its class, foreign_module.Net"):
        build_model(plain)


def test_importing_the_package_imports_no_torch_and_lists_its_names() -> None:
    code = "import lit_transformers, sys; assert 'build_model' in dir(lit_transformers); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout.strip() == "False"


def test_every_name_of_the_front_door_is_there_and_no_other() -> None:
    for name in lit_transformers.__all__:
        assert getattr(lit_transformers, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'build'"):
        lit_transformers.build  # noqa: B018
