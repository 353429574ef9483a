"""Checks of optimizers, schedules and ways to decode from outside."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from lit_transformers.batch import (
    LanguageDescription,
    Vocabulary,
)
from lit_transformers.checks.network_parts import DIM, HEADS
from lit_transformers.checks.part_checks import PartChecks, require_effects
from lit_transformers.config import Config
from lit_transformers.decoding.decode import DecodingConfig, decode
from lit_transformers.encodings import XLConfig
from lit_transformers.encodings.positions import SinusoidalConfig
from lit_transformers.gates.gates import Broken, is_small, largest, not_finite
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.gates.miniature import SHORTEST, VOCABULARY, probe_data, seeded
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderDecoderConfig, LanguageModelConfig
from lit_transformers.models.capabilities import PairNetwork
from lit_transformers.models.roles import vectors
from lit_transformers.runs.config import RunConfig
from lit_transformers.tasks import CausalLMConfig, Task
from lit_transformers.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from lit_transformers.training.groups import ParameterGroupConfig, roles_of

__all__ = ["checks"]

TOLERANCE = 1e-6
"""The largest difference in float64 between losses or outputs that are computed in different orders."""
STEPS, WARMUP, LAYERS = 6, 3, 3
BUDGETS = (1, 2, 10, 1000)
"""Numbers of updates that schedules are tried with."""


def checks(case: Config) -> PartChecks:
    """Yields the checks of an optimizer, a schedule or a way to decode; none of another part."""
    match case:
        case OptimizerConfig():
            yield "every parameter is stepped", lambda: every_parameter_is_stepped(case)
            yield "learning rate has a hold", lambda: learning_rate_has_a_hold(case)
            yield "vectors are not decayed", lambda: vectors_are_not_decayed(case)
            yield "follows groups", lambda: groups_are_followed(case)
            yield "gradients of zero", lambda: stays_finite(case)
            yield "resumes as if never stopped", lambda: goes_on_as_if_never_stopped(case)
            yield (
                "every field has an effect",
                lambda: require_effects(case, partial(_trainings_alike, "optimizer"), "training"),
            )
        case ScheduleConfig():
            warm = case.override({"warmup": WARMUP})
            yield "finite at every step", lambda: factors_are_finite(case)
            yield "warms up to its peak", lambda: warms_up_to_its_peak(case)
            yield "resumes as if never stopped", lambda: follows_from_the_step(case)
            yield (
                "every field has an effect",
                lambda: require_effects(warm, partial(_trainings_alike, "schedule"), "training"),
            )
        case DecodingConfig():
            yield "ends at its limit", lambda: ends_at_its_limit(case)
            yield "with and without a cache", lambda: cache_changes_nothing(case)
            yield "decodes twice alike", lambda: decodes_twice_alike(case)


def _trainings_alike(field: str, part: Config, case: Config) -> bool:
    """Whether two optimizers or schedules train a small language model alike. It has several layers, which they may
    treat differently."""
    base = RunConfig.from_dict({"model": {"kind": "language_model", "dim": DIM, "heads": HEADS, "depth": LAYERS}})
    steps = {"training.steps": 2 * STEPS, "training.device": "cpu"}
    return changes_nothing(*(base.override(steps | {f"training.{field}": one}) for one in (part, case)))


def _network(groups: Sequence[ParameterGroupConfig] = ()) -> Task:
    """Builds a small language model of several layers, in float64. One of its biases is frozen, and others are vectors
    of each head. Parameters that start as zeros, which no decay would change, are drawn."""
    model = LanguageModelConfig(dim=DIM, heads=HEADS, depth=LAYERS, mixer=AttentionConfig(encoding=XLConfig()))
    data = LanguageDescription.for_probe(Vocabulary(size=VOCABULARY, boundary=0, unit="byte", byte_lengths=None), 12)
    with seeded():
        task = CausalLMConfig().build(model, data, TrainingConfig(groups=tuple(groups))).double()
        for parameter in task.parameters():
            if not parameter.any():
                nn.init.normal_(parameter)
    task.network.get_parameter("norm.bias").requires_grad_(False)
    return task


def _step(task: Task, optimizer: torch.optim.Optimizer, number: int = 0, scale: float = 1.0) -> None:
    """Takes an update, on a batch that its number determines; the loss is multiplied by ``scale``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        batch = task.config.random_batch(task.data)
    optimizer.zero_grad()
    (scale * task.training_step(batch, 0)["loss"]).backward()
    task.groups.drop_gradients(task, number)
    optimizer.step()


def _weights(task: Task) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in task.parameters()]


def every_parameter_is_stepped(case: OptimizerConfig) -> str:
    """Checks that each parameter that requires a gradient is in one group and changes, and that frozen ones do not
    change."""
    network = _network()
    optimizer, before = case.build(network), _weights(network)
    in_groups = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    names = {id(parameter): name for name, parameter in network.named_parameters() if parameter.requires_grad}
    if sorted(in_groups) != sorted(names):
        missing = ", ".join(name for key, name in names.items() if key not in in_groups) or "none"
        raise Broken(
            f"missing in its groups: {missing}; give it the result of trained(network) or decay_groups(network, ...)"
        )
    _step(network, optimizer)
    still = [
        name
        for (name, parameter), old in zip(network.named_parameters(), before, strict=True)
        if parameter.requires_grad and torch.equal(parameter, old)
    ]
    if broken := not_finite(dict(network.named_parameters())):
        raise Broken(f"a step makes {', '.join(broken)} infinite or no number; keep divisors away from 0")
    if still:
        raise Broken(f"a step leaves {', '.join(still)} as they are; step every parameter that has a gradient")
    return f"{len(names)} tensors"


def learning_rate_has_a_hold(case: OptimizerConfig) -> str:
    """Checks that the peak of the rates is the config's, and that a schedule that sets them to zero stops training."""
    network = _network()
    optimizer = case.build(network)
    rates = [group["lr"] for group in optimizer.param_groups]
    if not math.isclose(max(rates), case.learning_rate):
        raise Broken(f"its rates are {rates}, and learning_rate is {case.learning_rate}; hand it on as lr")
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = _weights(network)
    _step(network, optimizer)
    if not all(map(torch.equal, before, _weights(network))):
        raise Broken("at a rate of 0 weights change, so that no schedule would act; read group['lr'] in every step")
    return f"peak {max(rates):g}"


def vectors_are_not_decayed(case: OptimizerConfig) -> str:
    """Checks that without gradients biases and norms do not change; matrices may change."""
    network = _network()
    optimizer, before = case.build(network), _weights(network)
    _step(network, optimizer, scale=0.0)
    changed = [not torch.equal(old, new) for old, new in zip(before, _weights(network), strict=True)]
    kept = vectors(network)
    names = [
        name for (name, p), moved in zip(network.named_parameters(), changed, strict=True) if moved and id(p) in kept
    ]
    if names:
        raise Broken(
            f"weight decay shrinks {', '.join(names)}; build its groups by decay_groups(network, weight_decay)"
        )
    return "matrices alone are" if any(changed) else "nothing is decayed"


def groups_are_followed(case: OptimizerConfig) -> str:
    """Checks that each parameter has the rate of its group (``training.groups``), and learns from its first step on."""
    configs = (
        ParameterGroupConfig(parameters=("embeddings",), rate=0.5),
        ParameterGroupConfig(parameters=("layer 1",), from_step=1),
        ParameterGroupConfig(parameters=("layer 2",), frozen=True),
    )
    task = _network(configs)
    groups, roles, names = task.groups, roles_of(task), {id(p): name for name, p in task.named_parameters()}
    optimizer, _ = TrainingConfig(optimizer=case).learn(task, groups)
    before, after = (
        {names[id(p)]: group["lr"] for group in each.param_groups for p in group["params"]}
        for each in (case.build(task), optimizer)
    )
    if {name for name in before if not math.isclose(after.get(name, math.nan), before[name])} != roles["embeddings"]:
        raise Broken("its groups are not those that it steps; hand parameters and lr to torch's Optimizer alone")
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if names[id(group["params"][0])] in roles["embeddings"] else group["lr"]
    upper = before.keys() - roles["embeddings"]
    for number, learning in enumerate((upper - roles["layer 1"], upper)):
        old = _weights(task)
        _step(task, optimizer, number)
        moved = {name for name, was, now in zip(names.values(), old, _weights(task), strict=True) if not was.equal(now)}
        if moved != learning:
            raise Broken(
                f"update {number} moves or leaves the wrong parameters, such as {min(moved ^ learning)}; read lr of "
                "each group in every step, and leave parameters without a gradient as they are"
            )
    return f"{len(optimizer.param_groups)} groups"


def stays_finite(case: OptimizerConfig) -> str:
    """Checks that weights stay finite where gradients are zero, or tiny, from the first step on."""
    for scale in (0.0, 1e-30):
        network = _network()
        optimizer = case.build(network)
        for number in range(2):
            _step(network, optimizer, number, scale)
        if not all(weight.isfinite().all() for weight in _weights(network)):
            raise Broken(f"weights are not finite after gradients of {scale:g}; add an epsilon to the divisor")
    return "finite"


def goes_on_as_if_never_stopped(case: OptimizerConfig) -> str:
    """Checks that training that resumes from a checkpoint gives the weights of training that never stopped."""
    network = _network()
    optimizer = case.build(network)
    for number in range(STEPS):
        if number == STEPS // 2:
            file = io.BytesIO()
            torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict()}, file)
        _step(network, optimizer, number)
    file.seek(0)
    saved, resumed = torch.load(file, weights_only=True), _network()
    resumed.load_state_dict(saved["network"])
    optimizer = case.build(resumed)
    optimizer.load_state_dict(saved["optimizer"])
    for number in range(STEPS // 2, STEPS):
        _step(resumed, optimizer, number)
    worst = largest(*(a - b for a, b in zip(_weights(network), _weights(resumed), strict=True)))
    if not is_small(worst, 0.0):
        raise Broken(
            f"from a checkpoint weights differ by {worst:.3g}; hold all moments in optimizer.state, by parameter"
        )
    return "equal weights"


def factors_are_finite(case: ScheduleConfig) -> str:
    """Checks that factors are finite and not negative, from update 0 to the one after the last, in short and long
    trainings, and above zero at the first."""
    for steps in BUDGETS:
        factors = [case.factor(step, steps) for step in range(steps + 1)]  # the scheduler asks for one more
        wrong = next((step for step, factor in enumerate(factors) if not 0 <= factor < math.inf), None)
        if wrong is not None:
            raise Broken(f"at update {wrong} of {steps} the factor is {factors[wrong]}; keep it finite, and at least 0")
        if factors[0] == 0:
            raise Broken(f"at update 0 of {steps} the factor is 0, and the update is lost; count from step + 1")
    return f"{len(BUDGETS)} budgets"


def warms_up_to_its_peak(case: ScheduleConfig) -> str:
    """Checks that factors rise over the warm-up and that the largest is 1, at its end or after it."""
    warm = case.override({"warmup": 10})
    rising, highest = (
        [warm.factor(step, 1000) for step in range(10)],
        max(warm.factor(step, 1000) for step in range(1000)),
    )
    if any(later <= earlier for earlier, later in pairwise(rising)):
        raise Broken("over its warm-up the factor does not rise; write after, and leave factor as it is")
    if not math.isclose(highest, 1.0, rel_tol=1e-6):
        raise Broken(f"the largest factor is {highest:.3g}, so learning_rate is not that of the peak; divide by it")
    return "peak 1"


def follows_from_the_step(case: ScheduleConfig) -> str:
    """Checks that a factor follows from the update alone, whichever was computed before."""
    steps = range(50)
    forward = [case.factor(step, 50) for step in steps]
    if [case.factor(step, 50) for step in reversed(steps)][::-1] != forward:
        raise Broken("the factor depends on earlier calls, which no checkpoint holds; compute it from step")
    return "equal factors"


def _decoder() -> tuple[PairNetwork, Tensor, Tensor]:
    """Builds a network that decodes, with three sources of different lengths and their mask."""
    positions = SinusoidalConfig(restart="document")
    model = EncoderDecoderConfig(dim=DIM, heads=HEADS, depth=1, positions=positions, initial_std=0.5)
    network = model.build(probe_data(VOCABULARY, SHORTEST)).double().eval()
    mask = torch.arange(9) < torch.tensor([[9], [5], [1]])
    return network, torch.randint(1, VOCABULARY, (3, 9)) * mask, mask


def ends_at_its_limit(case: DecodingConfig) -> str:
    """Checks that no output is longer than its limit or holds a boundary, and that scores are finite."""
    network, source, mask = _decoder()
    decoded = decode(network, source, mask, case.override({"extra": 3, "ratio": 1.0}), boundary=0)
    limits = (mask.sum(dim=1) + 3).tolist()
    if len(decoded.symbols) != 3 or len(decoded.scores) != 3:
        raise Broken(
            f"three sources have {len(decoded.symbols)} outputs and {len(decoded.scores)} scores; return one each"
        )
    if any(len(row) > limit for row, limit in zip(decoded.symbols, limits, strict=True)):
        raise Broken(
            f"outputs have {[*map(len, decoded.symbols)]} symbols, and limits are {limits}; end rows at limits"
        )
    if any(not 0 < symbol < VOCABULARY for row in decoded.symbols for symbol in row):
        raise Broken("an output holds the boundary, or a number that is no symbol; cut rows before the boundary")
    if not decoded.scores.isfinite().all():
        raise Broken(f"scores are {decoded.scores.tolist()}; return log-probabilities")
    return f"{max(map(len, decoded.symbols))} symbols at most"


def cache_changes_nothing(case: DecodingConfig) -> str:
    """Checks that reading with a cache, symbol by symbol, gives the output of reading all symbols anew for each one."""
    network, source, mask = _decoder()
    outputs = [decode(network, source, mask, case.override({"cache": c, "extra": 3}), 0).symbols for c in (True, False)]
    if outputs[0] != outputs[1]:
        raise Broken("with a cache it decodes other symbols than without; after a choice, call take with the choice")
    return "equal outputs"


def decodes_twice_alike(case: DecodingConfig) -> str:
    """Checks that an output is the same in every call, independent of earlier random numbers."""
    network, source, mask = _decoder()
    outputs = []
    for _ in range(2):
        outputs.append(decode(network, source, mask, case.override({"extra": 3}), 0).symbols)
        torch.rand(7)
    if outputs[0] != outputs[1]:
        raise Broken("called twice it decodes other symbols; draw from a generator that its config seeds")
    return "equal outputs"
