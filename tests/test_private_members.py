"""Members of libraries that are not public and for which there is no other way: each is used in one place.

A failure names the installed version, so that an upgrade which breaks one is known by its name. ``tests/test_house.py``
lists them. The members of Lightning's loops are tested by their effects, in ``test_lightning_equivalence.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import optuna
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer._completion_shared import get_completion_script

import lit_transformers.cli.program  # noqa: F401
from lit_transformers import onednn
from lit_transformers.attention import flash, kernels
from lit_transformers.quantisation import Int8Weights, dequantised, has_int8_product, levels_of
from sweeps.launchers.slurm import parameter_names
from sweeps.ledger.storage import trial_id
from sweeps.wandb.dashboard import ShownAnswer, define, write_views


@contextmanager
def installed(library: str, use: str) -> Iterator[None]:
    """Fails with the version of the library where a used member of it has changed."""
    try:
        yield
    except (AssertionError, AttributeError, ImportError, TypeError) as error:
        pytest.fail(f"{library} {version(library)} breaks {use}: {type(error).__name__}: {error}")


def test_the_id_of_a_trial_is_that_of_its_storage() -> None:
    with installed("optuna", "sweeps.ledger.storage.trial_id"):
        storage = optuna.storages.InMemoryStorage()
        studies = [storage.create_new_study([optuna.study.StudyDirection.MINIMIZE]) for _ in range(2)]
        created = [storage.create_new_trial(study) for study in (*studies, studies[1])]
        trials = storage.get_all_trials(studies[1])
        assert [trial.number for trial in trials] == [0, 1]
        assert [trial_id(trial) for trial in trials] == created[1:]


def test_workspaces_and_reports_of_wandb_are_written_as_they_are_saved(tmp_path: Path) -> None:
    pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed")
    with installed("wandb-workspaces", "sweeps.wandb.dashboard.write_views"):
        definition = define("project", "study", "Does it help?", "val/bpb", ["on", "off"], ShownAnswer(["Better."]))
        for path in write_views(tmp_path, definition):
            assert "Better." in path.read_text(encoding="utf-8")


def test_the_parameters_of_a_job_are_known_without_slurm() -> None:
    with installed("submitit", "sweeps.launchers.slurm.parameter_names"):
        assert {"partition", "time", "mem", "gpus_per_node", "signal_delay_s", "job_name"} <= parameter_names()


def test_the_script_of_a_shell_is_the_one_that_was_put_in_place_of_typers() -> None:
    with installed("typer", "lit_transformers.cli.program"):
        script = get_completion_script(prog_name="lit-x", complete_var="_LIT_X_COMPLETE", shell="zsh")
        assert "compdef _lit_x_completion lit-x" in script
        assert script.splitlines()[-1] == '[[ $zsh_eval_context[-1] != loadautofunc ]] || _lit_x_completion "$@"'


def test_a_list_of_gradients_is_divided_in_place() -> None:
    with installed("torch", "lit_transformers.tasks.task.Task.on_before_optimizer_step"):
        gradients = [torch.tensor([3.0, 6.0]), torch.tensor(9.0)]
        torch._foreach_div_(gradients, 3.0)
        assert [gradient.tolist() for gradient in gradients] == [[1.0, 2.0], 3.0]


def test_the_fused_kernel_of_a_cpu_returns_what_its_backward_pass_reads() -> None:
    with installed("torch", "lit_transformers.attention.flash"):
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
        mask = torch.zeros(5, 7, dtype=torch.float64).masked_fill(torch.rand(5, 7) < 0.3, float("-inf"))
        expected = (0.3 * q @ k.mT + mask).softmax(dim=-1) @ v
        gradient = torch.randn_like(expected)
        y, sums = flash.KERNEL(q, k, v, attn_mask=mask, scale=0.3)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(sums, (0.3 * q @ k.mT + mask).logsumexp(dim=-1))
        torch.testing.assert_close(
            flash.BACKWARD(gradient, q, k, v, y, sums, 0.0, False, attn_mask=mask, scale=0.3),
            torch.autograd.grad(expected, (q, k, v), gradient),
        )


def test_a_kernel_of_attention_is_seen_where_it_runs_and_where_it_is_compiled() -> None:
    x = torch.randn(1, 1, 8, 4)
    for call in (kernels.sdpa, torch.compile(kernels.sdpa, backend="eager", fullgraph=True)):
        with installed("torch", "lit_transformers.attention.kernels"), kernels.used_kernels() as used:
            call(x, x, x, None, 0.0, False, 1.0)
            assert used == {"flash"}


def test_the_product_of_onednn_is_that_of_every_vector_alone() -> None:
    torch.manual_seed(0)
    x, linear = torch.randn(3, 50, 33), nn.Linear(33, 65)
    with installed("torch", "lit_transformers.onednn"), torch.no_grad():
        for bias in (linear.bias, None):
            read = onednn.product(x, onednn.packed(linear.weight), bias)
            torch.testing.assert_close(read, F.linear(x, linear.weight, bias), rtol=1e-5, atol=1e-6)
            assert torch.equal(read[:1, :7], onednn.product(x[:1, :7], onednn.packed(linear.weight), bias))


def test_the_product_of_integers_is_exact_and_changed_weights_are_known() -> None:
    with installed("torch", "lit_transformers.quantisation"):
        codes = torch.randint(-127, 128, (5, 37), dtype=torch.int8)
        levels = levels_of(torch.randn(7, 37), 8, True)
        expected = (codes.long() @ levels.codes.long().mT) * levels.scales.mT
        weights = Int8Weights.of([dequantised(levels)], [])
        for count in (5, 1) if has_int8_product() else ():
            assert torch.equal(weights.product(codes[:count], weights.scales), expected[:count])
        assert torch.cpu._is_vnni_supported() in (True, False)
        weight = torch.zeros(3)
        version = weight._version
        weight.add_(1)
        assert weight._version != version
