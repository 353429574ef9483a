"""The specification of an ablation study as data. It is validated when it is constructed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import GetPydanticSchema, InstanceOf, WrapValidator

from ablations.arms import (
    Arm,
    Design,
    configure,
    list_arms,
    on_device,
    require_distinct,
    require_no_seeds,
    require_settable,
    select,
)
from lit_transformers.config import Config, ConfigError, NonNegative, Positive, PositiveFloat, nearest
from lit_transformers.records.measure import Goal, published_goal
from lit_transformers.records.plan import Contrast, Margin, Metric, Source
from lit_transformers.records.schema import Checked, Name
from lit_transformers.space import Choice, Conditional, Interval
from lit_transformers.trust import class_paths_in

__all__ = [
    "Ablation",
    "Contrast",
    "Looks",
    "Margin",
    "Match",
    "Metric",
    "Published",
    "PublishedValue",
    "Rates",
    "Resolved",
    "Retention",
    "Scale",
    "Source",
]


MEASURED = ("seconds", "memory")
"""The budgets that are known only by measuring them."""


@dataclass(frozen=True)
class Match(Checked):
    """The budget in which all arms equal the baseline: tokens, parameters, training FLOPs, seconds or peak memory.

    ``free`` names an integer field that is solved for in every other arm, in multiples of ``step`` (a dim must divide
    by its heads). Without it the arms have to agree within ``tolerance`` as they are: 1 %, or 5 % of seconds and
    memory, which are measured by a few steps of every candidate on this machine. ``chain`` counts the runs in that a
    run starts from, for tokens and FLOPs.
    """

    on: Literal["tokens", "parameters", "flops", "seconds", "memory"]
    free: str | None = None
    step: Positive = 1
    tolerance: PositiveFloat | None = None
    chain: bool = False

    def check(self) -> None:
        if self.chain and self.on not in ("tokens", "flops"):
            raise ConfigError(f"the {self.on} of a chain are those of its last run; leave it out", "chain")

    @property
    def measured(self) -> bool:
        """Whether the budget can be known only by measuring it."""
        return self.on in MEASURED

    @property
    def allowed(self) -> float:
        """The largest relative deviation from the target that an arm may have."""
        return self.tolerance or (0.05 if self.measured else 0.01)


@dataclass(frozen=True)
class PublishedValue(Checked):
    """A published number. ``arm`` is an arm's name, or levels it stands for: ``recurrence=off positions=shaw``."""

    arm: Name
    value: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Published(Checked):
    """The results that the source reports: its protocol in a line, its numbers as cells, and other ``claims``.

    ``margin`` is the size of the study's margin in units of the source's metric, where these are not the study's own.
    ``remarks`` explain results that differ from the source: a fault, the scale, or the paper? Each is by the name of a
    contrast or, in a study without contrasts, of the arm that is compared with the baseline. ``goal`` says whether less
    or more of the source's metric is better; None of one that this suite measures too, by its whole name.
    """

    protocol: Name
    metric: Name
    cells: Sequence[PublishedValue] = ()
    claims: Sequence[str] = ()
    margin: PositiveFloat | None = None
    remarks: Mapping[str, Name] = field(default_factory=dict)
    goal: Goal | None = None

    @property
    def better(self) -> Goal | None:
        """The goal of the source's metric; None where it is not known."""
        return self.goal or published_goal(self.metric)

    def check(self) -> None:
        known = published_goal(self.metric)
        if known is not None and known != (self.goal or known):
            better = "less" if known == "minimize" else "more"
            raise ConfigError(f"of {self.metric} {better} is better; set goal={known!r}", "published.goal")
        if self.cells and self.better is None:
            reason = f"this suite does not know whether less or more of {self.metric!r} is better"
            raise ConfigError(f"{reason}; set goal='minimize' or goal='maximize'", "published.goal")


@dataclass(frozen=True, kw_only=True)
class Retention(Checked):
    """Measures forgetting: a score of the networks on another task, before and after the runs of each arm.

    ``run`` is the config of the measurement: its task, its data and its training; each arm gives the network and the
    device. With ``training.steps=0`` nothing is trained: for retrieval, or for masked language modelling if the weights
    have a head for it. With steps, a head is trained on the network, which ``training.groups`` must freeze (a linear
    probe, arXiv:1610.01644). "Before" measures the weights that the first stage of an arm starts from, once for all
    arms that share them; "after" measures the weights of each finished run. ``metric`` is a metric of the measuring
    runs. ``limit`` is the most that it may get worse, in units of the metric, with the reason: an arm gets a verdict
    only if the 95 % interval of its loss lies within the limit.
    """

    run: InstanceOf[Config]
    metric: Metric
    limit: Margin | None = None

    def check(self) -> None:
        if self.metric.margin is not None or self.metric.compare != "difference":
            raise ConfigError("is compared by its difference, without a margin; set limit in its place", "metric")


@dataclass(frozen=True, kw_only=True)
class Rates(Checked):
    """Measures all arms at other learning rates too, after the runs of the study: an arm may only be better because the
    rate suits it. ``factors`` multiply the rate that each arm has; ``seeds`` is the number of seeds of each arm and
    rate, the first ones of the study. A study whose runs state no learning rate has no others."""

    factors: Sequence[PositiveFloat] = (0.5, 2.0)
    seeds: Positive = 2

    def check(self) -> None:
        if not self.factors or 1.0 in self.factors or len({*self.factors}) < len(self.factors):
            raise ConfigError("name each other rate once, such as 0.5 and 2.0; 1 is the rate of the study", "factors")


@dataclass(frozen=True, init=False)
class Looks(Checked):
    """A plan of looks at the results, each by its number of seeds: ``Looks(3, 6, 10, 16)``.

    After each look the comparisons that are decided stop, and the arms of the others get the seeds of the next one. The
    error is spent over all looks, so that they are stated beforehand.

    A study that was planned by looking at a pilot, its own earlier results or those of another recipe, begins at a seed
    that the pilot has not used: ``Looks(8, 16, first_seed=8)`` has the seeds 8 to 15, then 16 to 23. Otherwise the
    results of the pilot would count once more as evidence for the very effects that they suggested. ``pilot`` describes
    the earlier seeds and the changes that they led to; the report shows it next to the results.
    """

    seeds: tuple[Positive, ...]
    first_seed: NonNegative = 0
    pilot: str = ""

    def __init__(self, *seeds: int, first_seed: int = 0, pilot: str = "") -> None:
        object.__setattr__(self, "seeds", seeds)
        object.__setattr__(self, "first_seed", first_seed)
        object.__setattr__(self, "pilot", pilot)
        self.__post_init__()

    def check(self) -> None:
        if not self.seeds or self.seeds[0] < 2:
            raise ConfigError("the first look needs two seeds or more, for of one there is no interval", "seeds")
        if any(first >= second for first, second in pairwise(self.seeds)):
            raise ConfigError(f"looks {self.seeds} do not rise; name each number of seeds once, in order", "seeds")


_PositiveOrLooks = Annotated[
    Positive, WrapValidator(lambda value, validate: value if isinstance(value, Looks) else validate(value))
]

SeedPlan = Annotated[int | Looks, GetPydanticSchema(lambda _, handler: handler(_PositiveOrLooks))]
"""A number of seeds, or a plan of looks."""


@dataclass(frozen=True, kw_only=True)
class Scale(Checked):
    """A size to run a study at: its overrides of the baseline, its number of seeds, its arms, and its margin.

    ``margin`` takes the place of the metric's where the scale has data on which another effect is too small to matter.
    ``arms`` keeps only those named; ``leave_out`` drops some, each with the reason that the report gives. Both take
    names or levels, as a PublishedValue does.
    """

    overrides: Mapping[str, Any] = field(default_factory=dict)
    seeds: SeedPlan | None = None
    arms: Sequence[str] | None = None
    leave_out: Mapping[str, str] = field(default_factory=dict)
    margin: Margin | None = None


class Resolved(NamedTuple):
    """A study at one scale: its arms, their configs by name, its seeds, why each arm is left out, and its metric."""

    arms: list[Arm]
    configs: dict[str, Config]
    seeds: SeedPlan
    left_out: dict[str, str]
    metric: Metric

    @property
    def looks(self) -> tuple[int, ...]:
        """The planned looks, each by its number of seeds; empty where all seeds are judged at once."""
        return self.seeds.seeds if isinstance(self.seeds, Looks) else ()

    @property
    def first_seed(self) -> int:
        """The seed of the first run of every arm; those of the others follow it."""
        return self.seeds.first_seed if isinstance(self.seeds, Looks) else 0

    @property
    def pilot(self) -> str:
        """The description of the seeds before the first one."""
        return self.seeds.pilot if isinstance(self.seeds, Looks) else ""

    @property
    def most_seeds(self) -> int:
        """The number of seeds that an arm gets at most."""
        return self.seeds.seeds[-1] if isinstance(self.seeds, Looks) else self.seeds


@dataclass(frozen=True, kw_only=True)
class Ablation(Checked):
    """An ablation study. ``python -m ablations new NAME`` writes an example with every field explained.

    The levels of a factor map a name to overrides of the baseline; the first is the baseline's own and is ``{}``.
    A product compares ``contrasts`` or, without any, every arm with the baseline, and also the main effects of all
    factors and their two-way interactions. ``effects`` names the factors whose main effects are compared, each averaged
    over the levels of the others; then there are no interactions, and no contrasts but those that are named. The fewer
    a study compares, the fewer seeds decide. ``answer`` names the comparisons that answer the question, with which a
    report begins: contrasts or, without any, arms that are compared with the baseline, or factors of a product; by
    default the first contrast, the main effects of the first factor, or every arm against the baseline. ``also`` names
    further metrics that the report shows with their intervals and without verdicts; None: nats next to an accuracy or
    another score of predictions, and accuracy next to nats, if all arms measure both. ``retention`` names the
    measurements of forgetting, which are made before and after the runs of each arm. ``rates`` names other learning
    rates at which the arms are measured once more, to show whether the verdicts stand there: by default half and twice
    the rate of each arm; None: no others. ``preparation`` is the command that fetches the released weights which arms
    start from.
    ``space`` adds knobs to the search of ``tune``, by path: ``{"training.clip": Interval(0.1, 10.0, log=True)}``; a
    ``Conditional`` exists where another knob has a value.
    The constructor raises ConfigError for a mistyped path, a value out of range, or two arms that are the same run.
    """

    question: Name
    baseline: InstanceOf[Config]
    metric: Metric
    also: Sequence[Metric] | None = None
    source: Source | None = None
    factors: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    design: Design = "product"
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: SeedPlan = 3
    match: Match | None = None
    published: Published | None = None
    scales: Mapping[str, Scale] = field(default_factory=dict)
    contrasts: Sequence[Contrast] = ()
    effects: Sequence[str] | None = None
    answer: Sequence[str] = ()
    retention: Mapping[Name, Retention] = field(default_factory=dict)
    rates: Rates | None = field(default_factory=Rates)
    preparation: str = ""
    space: Mapping[str, InstanceOf[Interval] | InstanceOf[Choice] | InstanceOf[Conditional]] = field(
        default_factory=dict
    )

    def check(self) -> None:
        arms = self.all_arms()
        for number, contrast in enumerate(self.contrasts):
            for name in (contrast.arm, contrast.against):
                if name not in {arm.name for arm in arms}:
                    suggestion = nearest(name, [arm.name for arm in arms])
                    raise ConfigError(f"no arm is called {name!r}; {suggestion}", f"contrasts.{number}")
        for number, factor in enumerate(self.effects or ()):
            if self.design != "product" or len(self.factors) < 2:
                raise ConfigError("effects are those of a product of two factors or more", "effects")
            if factor not in self.factors:
                raise ConfigError(
                    f"no factor is called {factor!r}; {nearest(factor, self.factors)}", f"effects.{number}"
                )
        if self.published and self.published.margin and (not self.metric.margin or self.metric.compare == "ratio"):
            reason = "is that of the metric in another unit, so that the metric states one, which is no ratio"
            raise ConfigError(reason, "published.margin")
        for number, cell in enumerate(self.published.cells if self.published else ()):
            select(arms, cell.arm, f"published.cells.{number}")
        names = [self.metric.name, *(metric.name for metric in self.also or ())]
        for number, metric in enumerate(self.also or ()):
            if metric.name in names[: number + 1]:
                raise ConfigError(f"{metric.name} is shown already; name each metric once", f"also.{number}")
            if metric.margin:
                raise ConfigError("a metric without a verdict has no margin; drop it", f"also.{number}.margin")
        self._check_remarks(arms)
        self._check_answer(arms)
        for scale in self.scales or ("demo",):
            self.resolve(scale)

    def _check_remarks(self, arms: Sequence[Arm]) -> None:
        """Raises ConfigError for a remark on a comparison that the study does not make."""
        compared = [contrast.name for contrast in self.contrasts] or [arm.name for arm in arms[1:]]
        for name in self.published.remarks if self.published else ():
            if name not in compared:
                kind = "contrast" if self.contrasts else "arm but the baseline"
                raise ConfigError(f"no {kind} is called {name!r}; {nearest(name, compared)}", "published.remarks")

    def _check_answer(self, arms: Sequence[Arm]) -> None:
        """Raises ConfigError for an answer by a comparison that the study does not make."""
        compared = [contrast.name for contrast in self.contrasts]
        if not compared and self.effects is None:
            compared = [arm.name for arm in arms[1:]]
        if self.design == "product" and len(self.factors) > 1:
            compared += self.factors if self.effects is None else self.effects
        for number, name in enumerate(self.answer):
            if name not in compared:
                raise ConfigError(f"no comparison is called {name!r}; {nearest(name, compared)}", f"answer.{number}")

    @property
    def classes(self) -> set[str]:
        """The class paths that it names."""
        scales = [scale.overrides for scale in self.scales.values()]
        measured = [one.run for one in self.retention.values()]
        return {*class_paths_in([self.baseline, self.factors, self.arms, scales, measured])}

    def all_arms(self) -> list[Arm]:
        """Returns every arm of the design, including those that a scale leaves out."""
        return list_arms(self.design, self.factors, self.arms)

    def resolve(self, scale: str = "demo", changes: Mapping[str, Any] | None = None) -> Resolved:
        """Resolves the arms at a scale; ``changes`` are overrides of all arms, such as those of ``--set``.

        An arm's own overrides win over those of the scale, so a knob that is varied keeps its levels. Raises
        ConfigError for changes of fields that the study plans itself.
        """
        size = self.scale(scale)
        arms, left_out = self._select_arms(size, scale)
        try:
            require_no_seeds(size.overrides)
            baseline = self.baseline.override(size.overrides)
        except ConfigError as error:
            place = f"scales.{scale}.overrides"
            raise ConfigError(error.reason, f"{place}.{error.path}" if error.path else place) from None
        if changes:
            require_settable(changes, baseline, arms)
            baseline = baseline.override(changes)
        configs = {arm.name: configure(baseline, arm, self.factors) for arm in arms}
        if changes and "training.device" in changes:
            configs = {name: on_device(config, changes["training.device"]) for name, config in configs.items()}
        require_distinct(arms, configs)
        metric = replace(self.metric, margin=size.margin or self.metric.margin)
        return Resolved(arms, configs, size.seeds or self.seeds, left_out, metric)

    def scale(self, name: str) -> Scale:
        """Returns a scale by its name; a study that lists none has only a demo scale without overrides."""
        scales = self.scales or {"demo": Scale()}
        if name not in scales:
            raise ConfigError(f"no scale {name!r}; {nearest(name, scales)}", "scales")
        return scales[name]

    def _select_arms(self, size: Scale, name: str) -> tuple[list[Arm], dict[str, str]]:
        arms = self.all_arms()
        left_out = {
            arm.name: reason
            for selector, reason in size.leave_out.items()
            for arm in select(arms, selector, f"scales.{name}.leave_out")
        }
        included = {arm.name for arm in arms}
        if size.arms is not None:
            included = {arm.name for selector in size.arms for arm in select(arms, selector, f"scales.{name}.arms")}
        for arm in arms:
            if arm.name not in included:
                left_out.setdefault(arm.name, f"not among the arms of scale {name}")
        if arms[0].name in left_out:
            raise ConfigError(f"the baseline {arms[0].name!r} cannot be left out", f"scales.{name}")
        return [arm for arm in arms if arm.name not in left_out], left_out
