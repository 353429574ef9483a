"""Plans a study: the runs that answer it, with their keys, configs and costs. Nothing is trained."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ablations.ablation import Ablation, Published, Rates, Resolved, Retention
from ablations.arms import require_distinct, seed_overrides, select
from ablations.matching import match_arms
from ablations.metrics import further_metrics, stated_goal, with_goal
from ablations.probing import measured_spending
from ablations.stages import Stages, chain_cost
from lit_transformers.config import Config, ConfigError, MissingFileError, Plain, parse_assignments
from lit_transformers.plugins import plugin_arguments
from lit_transformers.printing.amounts import count
from lit_transformers.read_once import reads_shared
from lit_transformers.records.files import RESULTS
from lit_transformers.records.floors import Floors, write_floors
from lit_transformers.records.measure import Goal
from lit_transformers.records.measurement import SPLIT
from lit_transformers.records.plan import (
    Contrast,
    LeftOut,
    LookPlan,
    Matched,
    MatchedBudget,
    Metric,
    Plan,
    PlannedArm,
    PlannedRates,
    PlannedRetention,
    PlannedRun,
    Protocol,
    PublishedCell,
    PublishedNumbers,
    RetentionRuns,
    load_plan,
    parse_plan,
    plan_path,
    plan_to_plain,
    write_plan,
)
from lit_transformers.records.study_folder import PLAIN_SCALE
from lit_transformers.runner import Runner, load_runner, runner_of
from lit_transformers.trust import remember
from sweeps.ledger.ticket import Ticket
from sweeps.object_store import shown_address

if TYPE_CHECKING:
    from sweeps.live import Row

__all__ = ["PlannedStudy", "Request", "as_typed", "changed_arms", "existing_plan", "make_plan", "reported_plan"]

Tuned = Mapping[str, Mapping[str, Plain]]
NO_RATE = "no run states a learning rate; name lr or learning_rate in init_args or params, or give --rates 0"
MOST_SEEDS = 1_000
"""Of an arm: with a number that was mistyped, planning would take hours."""


@dataclass(frozen=True)
class Request:
    """The command line's options that select runs: a scale, overrides as typed, and a number of seeds."""

    scale: str = PLAIN_SCALE
    assignments: tuple[str, ...] = ()
    seeds: int | None = None

    @property
    def changes(self) -> dict[str, Plain]:
        """The overrides as a mapping from path to value."""
        return parse_assignments(self.assignments)

    def arguments(self) -> list[str]:
        """Returns the request as words of a command line, with the plug-ins that were typed."""
        words = [*plugin_arguments(), "--scale", self.scale]
        for assignment in self.assignments:
            words += ["--set", assignment]
        return words + (["--seeds", str(self.seeds)] if self.seeds else [])


@dataclass(frozen=True)
class PlannedStudy:
    """The runs of a study: its plan, their configs by key, and their costs by arm.

    ``passes`` are the forward passes whose outputs runs read from a cache: by their names, the FLOPs of each, by the
    keys of the runs that share it. ``runner`` names the object that does a run; ``repeated`` has the arms that are
    trained as an earlier arm is and only measured in another way, each with that arm; ``sources`` are the files outside
    of the suite whose code computes the numbers; ``inputs`` the inputs from outside that planning it read, as
    ``ablations.inputs`` records them, empty where they are not known. ``has_rate`` tells whether the run of an arm
    states a learning rate. Costs of stages are by their names. A cost that is not known is None.
    """

    plan: Plan
    configs: dict[str, dict[str, Plain]]
    costs: dict[str, dict[str, float | None]]
    runner: str
    repeated: Mapping[str, str] = field(default_factory=dict)
    sources: Sequence[str] = ()
    inputs: Mapping[str, Plain] = field(default_factory=dict)
    passes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    has_rate: bool = True

    @property
    def study(self) -> str:
        """The study's name."""
        return self.plan.study

    @property
    def metric(self) -> str:
        """The name of the metric in a record."""
        return self.plan.metric.name

    @property
    def folder(self) -> str:
        """The name of the plan's folder below ``runs/studies``."""
        return self.plan.folder

    def tickets(self) -> list[Ticket]:
        """Lists every run once, the first seed of all arms first, so that arms can be compared early; before each those
        that it starts from, of one seed those first that others take over the training of, and last those that measure
        retention."""
        tickets: dict[str, Ticket] = {}
        arms = sorted(self.plan.arms, key=lambda arm: arm.name in self.repeated)
        runs = {arm.name: arm.runs for arm in arms}
        for index in range(self.plan.seeds):
            for arm in arms:
                if index >= len(arm.runs):
                    continue
                run = arm.runs[index]
                for stage in self.plan.chain(run.sources):
                    ticket = Ticket(stage.key, stage.name, stage.seed, self.configs[stage.key], {}, stage.sources)
                    tickets.setdefault(stage.key, ticket)
                donors = runs.get(self.repeated.get(arm.name, ""), ())
                donor = donors[index].key if index < len(donors) and donors[index].key != run.key else None
                known = tickets.get(run.key)
                if known is None or known.arm not in runs:  # a run of an arm that others start from is the arm's
                    ticket = Ticket(run.key, arm.name, run.seed, self.configs[run.key], arm.levels, run.sources, donor)
                    tickets[run.key] = ticket
            for name, measured in self._retention_by_name(index).items():
                for run in measured:
                    ticket = Ticket(run.key, name, run.seed, self.configs[run.key], {}, run.sources)
                    tickets.setdefault(run.key, ticket)
        return list(tickets.values())

    def _retention_by_name(self, index: int) -> dict[str, list[PlannedRun]]:
        """Returns the runs that measure retention for the run of each arm with this number, by their displayed
        names."""
        by_name: dict[str, list[PlannedRun]] = {}
        for retention in self.plan.retention:
            for arm, pairs in retention.arms.items():
                for pair in pairs[index : index + 1]:
                    by_name.setdefault(before_name(retention.name), []).append(pair.before)
                    by_name.setdefault(after_name(retention.name, arm), []).append(pair.after)
        return by_name

    def keys_by_name(self) -> dict[str, list[str]]:
        """Returns the keys of all runs by their displayed names: of the stages that others start from, of arms, and of
        measurements of retention."""
        keys: dict[str, dict[str, None]] = {}
        for stage in self.plan.stages:
            keys.setdefault(stage.name, {})[stage.key] = None
        keys |= {arm.name: dict.fromkeys(run.key for run in arm.runs) for arm in self.plan.arms}
        for index in range(self.plan.seeds):
            for name, measured in self._retention_by_name(index).items():
                keys.setdefault(name, {}).update(dict.fromkeys(run.key for run in measured))
        return {name: [*of_name] for name, of_name in keys.items()}

    def needed(self, rows: Iterable[Row]) -> list[Row]:
        """Returns the rows without those of stages that have not run and that no run needs which is still to do."""
        own, wanted = {*self.plan.by_key(), *self.plan.retention_runs()}, set[str]()
        kept: list[Row] = []
        for row in reversed([*rows]):  # each stage comes before the runs that start from it
            if row.state.over or row.ticket.key in own or row.ticket.key in wanted:
                kept.append(row)
                wanted |= set() if row.state.over else {*row.ticket.sources}
        return kept[::-1]

    def with_seeds(self, seeds: Mapping[str, int], looks: LookPlan | None) -> PlannedStudy:
        """Returns the plan with the first runs of each arm, as many as ``seeds`` has of it, and with these looks."""
        arms = tuple(replace(arm, runs=arm.runs[: seeds[arm.name]]) for arm in self.plan.arms)
        stages = self.plan.chain(key for arm in arms for run in arm.runs for key in run.sources)
        protocol = f"{self.plan.protocol.rpartition(', ')[0]}, {_seeds_text(arms)}"
        retention = tuple(
            replace(one, arms={arm: pairs[: seeds[arm]] for arm, pairs in one.arms.items()})
            for one in self.plan.retention
        )
        plan = replace(self.plan, arms=arms, stages=stages, retention=retention, looks=looks, protocol=protocol)
        return replace(self, plan=plan)

    def with_rates(self, seeds: int | None) -> PlannedStudy:
        """Returns the plan with n seeds of each arm at half and twice the learning rate, or at the rates that the study
        states; with 0 none are measured. None: as the study states. Raises ConfigError where no run has a rate."""
        if seeds is None:
            return self
        if seeds and not self.has_rate:
            raise ConfigError(NO_RATE, f"study {self.study}")
        stated = self.plan.rates.factors if self.plan.rates else tuple(Rates().factors)
        return replace(self, plan=replace(self.plan, rates=PlannedRates(stated, seeds) if seeds else None))

    def require_all_seeds(self, runs: Path) -> None:
        """Raises ConfigError where this plan's report would replace a report of more seeds of the same runs."""
        reported = reported_plan(runs, self.folder)
        if reported is None or self.plan.baseline in changed_arms(reported, self.plan):
            return
        if reported.seeds > self.plan.seeds:
            raise ConfigError(
                f"a report of {reported.seeds} seeds stands there, and this one would be of {self.plan.seeds}; "
                f"ask for --seeds {reported.seeds}, or remove that folder",
                str(runs / "studies" / self.folder),
            )

    def write(self, runs: Path, floors: Floors | None = None) -> None:
        """Writes ``plan.json`` where reports look for it, and the floors that were measured for the plan next to it."""
        write_plan(runs, self.plan)
        if floors is not None:
            write_floors(runs, self.folder, floors)

    @property
    def classes(self) -> list[Plain]:
        """All plain data that name classes which the runs import: their configs, and the runner where it is not from
        this library."""
        own = self.runner.startswith("lit_transformers.")
        return [*self.configs.values(), *([] if own else [{"class_path": self.runner}])]

    def to_dict(self) -> dict[str, Plain]:
        """Returns the planned study as plain data, in which configs share the parts that are equal."""
        return {**vars(self), "plan": plan_to_plain(self.plan), "configs": shared_parts(self.configs)}

    @classmethod
    def from_dict(cls, plain: dict[str, Plain]) -> Self:
        """Reads the output of ``to_dict``."""
        return cls(**plain | {"plan": parse_plan(plain["plan"]), "configs": joined_parts(plain["configs"])})


def shared_parts(configs: Mapping[str, dict[str, Plain]]) -> Plain:
    """Returns configs by key as plain data in which equal parts are written once: seeds of an arm differ in few."""
    numbers: dict[str, int] = {}
    fields = {
        key: {name: numbers.setdefault(json.dumps(part), len(numbers)) for name, part in config.items()}
        for key, config in configs.items()
    }
    return {"parts": [json.loads(text) for text in numbers], "fields": fields}


def joined_parts(plain: Any) -> dict[str, dict[str, Plain]]:
    """Reads the output of ``shared_parts``. Configs share the objects of equal parts."""
    parts = plain["parts"]
    return {key: {name: parts[part] for name, part in fields.items()} for key, fields in plain["fields"].items()}


def existing_plan(runs: Path, folder: str) -> Plan | None:
    """Returns the plan of a folder; None where it is missing, cannot be read, or is of another scale or changes, which
    occurs in folders from when a study had one folder for all of them."""
    try:
        plan = load_plan(plan_path(runs, folder))
    except (OSError, ValueError, RecursionError):
        return None
    return plan if plan.folder == folder and all(arm.runs for arm in plan.arms) else None


def reported_plan(runs: Path, folder: str) -> Plan | None:
    """Returns the plan of the report that stands in a folder; None where there is none, or it cannot be read."""
    path = plan_path(runs, folder).with_name("report") / RESULTS
    try:
        with path.open(encoding="utf-8") as lines:
            return parse_plan(json.loads(lines.readline())["plan"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def changed_arms(previous: Plan, plan: Plan) -> list[str]:
    """Returns the arms whose runs have other configs, data or code than in an earlier plan of the study: those whose
    keys differ for a seed that both plans have."""
    keys = {(arm.name, run.seed): run.key for arm in previous.arms for run in arm.runs}
    return [
        arm.name for arm in plan.arms if any(keys.get((arm.name, run.seed), run.key) != run.key for run in arm.runs)
    ]


def as_typed(words: Sequence[str], runs: Path) -> str:
    """Returns a command that can be pasted into a shell, with the folder of runs where that is not the default one."""
    return shlex.join([*words, *([] if runs == Path("runs") else ["--runs", shown_address(runs)])])


def make_plan(
    study: str,
    ablation: Ablation,
    request: Request,
    tuned: Tuned | None = None,
    runs: Path = Path("runs"),
    typed: str | None = None,
) -> PlannedStudy:
    """Resolves, matches and names every run. Raises ConfigError that names the study and the place.

    tuned: the values that a search selected, by arm; they win over the arm's own overrides. runs: where measurements
    of budgets are kept. typed: the study as the command line names it, where that is not its name.
    The runner that the baseline's class names computes the costs and the key of a run.
    """
    try:
        name = runner_of(ablation.baseline)
        runner = load_runner(name)
        resolved = _with_values(ablation.resolve(request.scale, request.changes), tuned or {})
        renamed = partial(_renamed, split=_requested_split(request, tuned or {}), runner=runner)
        resolved = resolved._replace(metric=renamed(resolved.metric))
        also = None if ablation.also is None else [*map(renamed, ablation.also)]
        configs, matched = _match_budgets(ablation, resolved, name, runs)
        _require_effects(configs, runner)
        with reads_shared():
            stages, runs_by_arm = _list_runs(resolved, configs, request.seeds or resolved.most_seeds, runner)
        goal = _rehearse(configs, stages.examples, resolved.metric, runner)
        resolved = resolved._replace(metric=with_goal(resolved.metric, goal))
        has_rate = any(runner.rate_fields(config) for config in configs.values())
        rates = ablation.rates if has_rate else None
        plan = _plan(study, replace(ablation, rates=rates), request, resolved, matched, runs_by_arm, stages)
        plan = replace(plan, also=further_metrics(also, resolved.metric, configs, runner))
        plan = replace(plan, retention=_plan_retention(ablation, plan, stages, runner))
        costs = _costs(configs, stages.examples, runner)
        plan = replace(_with_references(plan, configs, runner), reach=runner.smallest_reach([*configs.values()]))
        plan.check()
        _require_small_margin(plan)
    except MissingFileError as error:
        remedy = f"; all of this study: {ablation.preparation}" if ablation.preparation else ""
        raise ConfigError(f"{error}{remedy}", f"study {study}") from None
    except ConfigError as error:
        raise ConfigError(str(error), f"study {study}") from None
    words = [typed or study, *request.arguments()]
    until = ["--until", "decided"] if plan.looks and not request.seeds else []
    verbs = {"run": [*words, *until], "report": words}
    plan = replace(
        plan,
        protocol=f"{_protocol(configs, costs, runner)}, {_seeds_text(plan.arms)}",
        commands={verb: as_typed(["python", "-m", "ablations", verb, *words], runs) for verb, words in verbs.items()},
    )
    sources = sorted({str(path) for config in configs.values() for path in runner.source_files(config)})
    planned = PlannedStudy(plan, stages.configs, costs, name, _repeated(configs, runner), sources)
    planned = replace(planned, passes=_passes(planned, runner), has_rate=has_rate)
    remember(planned.classes)
    return planned


def _repeated(configs: dict[str, Config], runner: Runner) -> dict[str, str]:
    """Returns the arms whose runs take over the training of an earlier arm, each with that arm."""
    keys = {arm: runner.training_key(config) for arm, config in configs.items()}
    first = {key: arm for arm, key in reversed(keys.items())}
    return {arm: first[key] for arm, key in keys.items() if key is not None and first[key] != arm}


def _passes(planned: PlannedStudy, runner: Runner) -> dict[str, dict[str, float]]:
    """Returns the forward passes that runs share by a cache: the FLOPs of each by the keys of its runs."""
    passes: dict[str, dict[str, float]] = {}
    for keys in planned.keys_by_name().values():
        for key in keys:
            shared = runner.cached_pass(runner.config.from_dict(planned.configs[key]))
            if shared is None:  # other seeds have none either
                break
            passes.setdefault(shared.name, {})[key] = shared.flops
    return passes


def _costs(
    configs: dict[str, Config], stages: Mapping[str, Config], runner: Runner
) -> dict[str, dict[str, float | None]]:
    """Returns the costs of a run of each arm and of each stage by itself and, where it starts from others, with all of
    these: ``chain_train_flops`` and ``chain_tokens``."""
    costs: dict[str, dict[str, float | None]] = {}
    for name, config in {**configs, **stages}.items():
        costs[name] = dict(runner.describe(config)._asdict())
        if runner.sources(config):
            chain = chain_cost(config, runner)
            costs[name] |= {"chain_train_flops": chain.train_flops, "chain_tokens": chain.tokens}
    return costs


def _plan(
    study: str, ablation: Ablation, request: Request, resolved: Resolved, matched: dict[str, Matched],
    runs: dict[str, tuple[PlannedRun, ...]], stages: Stages,
) -> Plan:  # fmt: skip
    """Returns the plan without its protocol and commands."""
    match = ablation.match
    return Plan(
        study=study,
        scale=request.scale,
        changes=request.changes,
        question=ablation.question,
        source=ablation.source,
        metric=resolved.metric,
        design=ablation.design,
        factors={factor: tuple(levels) for factor, levels in ablation.factors.items()},
        baseline=resolved.arms[0].name,
        match=MatchedBudget(match.on, match.free, match.allowed, matched, match.chain) if match else None,
        arms=tuple(PlannedArm(arm.name, arm.levels, runs[arm.name]) for arm in resolved.arms),
        stages=tuple(stages.stages.values()),
        rates=PlannedRates(tuple(ablation.rates.factors), ablation.rates.seeds) if ablation.rates else None,
        looks=LookPlan(resolved.looks, pilot=resolved.pilot) if resolved.looks else None,
        contrasts=_contrasts(ablation, resolved),
        effects=None if ablation.effects is None else tuple(ablation.effects),
        answer=tuple(ablation.answer) or None,
        published=_published(ablation.published, ablation) if ablation.published else None,
        left_out=tuple(LeftOut(arm, reason) for arm, reason in resolved.left_out.items()),
    )


def _with_values(resolved: Resolved, tuned: Tuned) -> Resolved:
    configs = {name: config.override(tuned.get(name, {})) for name, config in resolved.configs.items()}
    return resolved._replace(configs=configs)


def _requested_split(request: Request, tuned: Tuned) -> str | None:
    """Returns the split that a command line or a tuning sets; None for the study's own."""
    requested = [values[SPLIT] for values in (request.changes, *tuned.values()) if SPLIT in values]
    return str(requested[-1]) if requested else None


def _renamed(metric: Metric, split: str | None, runner: Runner) -> Metric:
    """Returns a metric by its name on a split; None for the split that the study measures."""
    return metric if split is None else replace(metric, name=runner.named_on(metric.name, split))


def _match_budgets(
    ablation: Ablation, resolved: Resolved, runner: str, runs: Path
) -> tuple[dict[str, Config], dict[str, Matched]]:
    match = ablation.match
    if match is None:
        return resolved.configs, {}
    measure = measured_spending(match.on, runner, runs / "probes") if match.measured else None
    loaded = load_runner(runner)
    describe = partial(chain_cost, runner=loaded) if match.chain else loaded.describe
    configs, matched = match_arms(match, resolved.configs, resolved.arms[0].name, describe, measure)
    require_distinct(resolved.arms, configs)
    return configs, matched


def _rehearse(configs: dict[str, Config], stages: Mapping[str, Config], metric: Metric, runner: Runner) -> Goal | None:
    """Returns the goal of the study's metric, None where neither the study nor the runs of its arms state it.

    Raises ConfigError for anything that an arm's runs, or the runs that they start from, would only miss at their end,
    such as the study's metric, and where the study or an earlier arm states another goal.
    """
    for name, config in stages.items():
        try:
            runner.rehearse(config)
        except MissingFileError:
            raise
        except ConfigError as error:
            raise ConfigError(f"in {name}: {error.reason}", error.path) from None
    goal = metric.goal
    for number, (name, config) in enumerate(configs.items()):
        try:
            goal = stated_goal(config, metric, goal, runner)
            runner.rehearse(config)
        except MissingFileError:
            raise
        except ConfigError as error:
            of_arm = f"in arm {name}: " if number else ""
            raise ConfigError(f"{of_arm}{error.reason}", error.path) from None
    return goal


def _require_effects(configs: dict[str, Config], runner: Runner) -> None:
    """Raises ConfigError for an arm that computes the same as the baseline, though its config differs."""
    baseline, *others = configs
    for name in others:
        if runner.changes_nothing(configs[name], configs[baseline]):
            raise ConfigError("computes the same as the baseline: its overrides have no effect here", name)


def _with_references(plan: Plan, configs: dict[str, Config], runner: Runner) -> Plan:
    """Returns the plan with the reference values of the metric that are known beforehand, by arm where arms read
    different data."""
    known = {name: tuple(runner.references(config, plan.metric.name)) for name, config in configs.items()}
    if len({*known.values()}) == 1:
        return replace(plan, references=known[plan.baseline])
    return replace(plan, arms=tuple(replace(arm, references=known[arm.name]) for arm in plan.arms))


def _require_small_margin(plan: Plan) -> None:
    """Raises ConfigError for a margin within which all values lie that are possible, so that no arms could differ."""
    margin = plan.metric.margin
    for data, references in plan.references_by_data.items():
        known = abs(references[0].value - references[-1].value)
        if margin and plan.metric.compare == "difference" and margin.size >= known:
            of_data = f" of {data}" if data else ""
            raise ConfigError(
                f"{margin.size:g} is all that can be known{of_data} ({known:.4g}), or more; state a smaller margin",
                "metric.margin",
            )


def _list_runs(
    resolved: Resolved, configs: dict[str, Config], seeds: int, runner: Runner
) -> tuple[Stages, dict[str, tuple[PlannedRun, ...]]]:
    """Returns the config of every key with the stages that runs start from, and the runs of every arm. Raises
    ConfigError for more than MOST_SEEDS."""
    if seeds > MOST_SEEDS:
        raise ConfigError(f"an arm has at most {MOST_SEEDS:,} seeds, not {seeds}", "seeds")
    stages, runs_by_arm = Stages(runner), dict[str, tuple[PlannedRun, ...]]()
    numbers = range(resolved.first_seed, resolved.first_seed + seeds)
    for arm in resolved.arms:
        config = configs[arm.name]
        runs_by_arm[arm.name] = tuple(
            stages.planned(config.override(seed_overrides(config, seed)), seed, arm.name) for seed in numbers
        )
    return stages, runs_by_arm


def before_name(retention: str) -> str:
    """Returns the displayed name of the runs that measure retention before training."""
    return f"{retention} before"


def after_name(retention: str, arm: str) -> str:
    """Returns the displayed name of the runs that measure retention after the runs of an arm."""
    return f"{retention} after {arm}"


def _plan_retention(ablation: Ablation, plan: Plan, stages: Stages, runner: Runner) -> tuple[PlannedRetention, ...]:
    """Plans the runs that measure retention before and after the runs of each arm. Raises ConfigError if a measurement
    is impossible, or if no arm starts from weights."""
    planned = []
    for name, retention in ablation.retention.items():
        try:
            arms = {arm.name: _pairs(name, retention, arm, stages, runner) for arm in plan.arms}
            arms = {arm: pairs for arm, pairs in arms.items() if pairs}
            if not arms:
                raise ConfigError("no arm starts from weights, so there is nothing to forget; drop it")
            goal = _rehearse({before_name(name): stages.examples[before_name(name)]}, {}, retention.metric, runner)
            metric = with_goal(retention.metric, goal)
        except MissingFileError:
            raise
        except ConfigError as error:
            place = f"retention.{name}"
            raise ConfigError(error.reason, f"{place}.{error.path}" if error.path else place) from None
        planned.append(PlannedRetention(name, metric, retention.limit, arms))
    return tuple(planned)


def _pairs(
    name: str, retention: Retention, arm: PlannedArm, stages: Stages, runner: Runner
) -> tuple[RetentionRuns, ...]:
    """Plans the runs that measure retention before and after the runs of an arm; none if it starts from no weights."""
    pairs = []
    for run in arm.runs:
        measured = runner.retention(runner.config.from_dict(stages.configs[run.key]), retention.run)
        if measured is not None:
            before = stages.measured(measured.before, run.seed, before_name(name))
            after = stages.measured(measured.after, run.seed, after_name(name, arm.name))
            pairs.append(RetentionRuns(run.seed, before, after))
    return tuple(pairs)


def _contrasts(ablation: Ablation, resolved: Resolved) -> tuple[Contrast, ...] | None:
    """Returns the contrasts whose arms are run at this scale; None, for every arm against the baseline, without any."""
    arm_names = {arm.name for arm in resolved.arms}
    contrasts = (contrast for contrast in ablation.contrasts if {contrast.arm, contrast.against} <= arm_names)
    return tuple(contrasts) or None


def _published(published: Published, ablation: Ablation) -> PublishedNumbers:
    """Returns the published values, each by the name of its arm if it is about one, else by the levels it names."""
    cells = []
    for cell in published.cells:
        arms = select(ablation.all_arms(), cell.arm, "published.cells")
        arm = arms[0].name if len(arms) == 1 else dict(part.split("=", 1) for part in cell.arm.split())
        cells.append(PublishedCell(arm, cell.value, cell.note))
    protocol, claims = Protocol(published.protocol), tuple(published.claims)
    return PublishedNumbers(
        protocol, published.metric, tuple(cells), claims, published.margin, published.remarks, published.better
    )


def _protocol(configs: dict[str, Config], costs: dict[str, dict[str, float | None]], runner: Runner) -> str:
    """Returns our protocol in a line, without the seeds: the corpus, how it is read where configs do not say, the
    budget and the size of the baseline.

    Where tokens are not counted, the budget is its updates. Unknown facts are omitted.
    """
    baseline = next(iter(configs))
    # The kind of the data is one level below it: data.source.kind, or data.generator.kind.
    source_kinds = (value for path, value in configs[baseline].leaves() if re.fullmatch(r"data\.\w+\.kind", path))
    corpus = next(source_kinds, None)
    parts = [str(corpus)] if corpus else []
    parts += [*_reading_messages(configs), *runner.protocol_notes(configs[baseline])]
    tokens, steps = costs[baseline]["tokens"], configs[baseline].get("training.steps")
    if tokens is not None:
        parts.append(f"{count(tokens)} training tokens")
    elif steps is not None:
        parts.append(f"{count(steps)} updates")
    if (parameters := costs[baseline]["parameters"]) is not None:
        parts.append(f"{count(parameters)} parameters")
    return ", ".join(parts)


def _reading_messages(configs: dict[str, Config]) -> list[str]:
    """Returns sentences on how sources of text are read that their configs do not say."""
    sources = [getattr(getattr(config, "data", None), "source", None) for config in configs.values()]
    readers = [reader for source in sources if (reader := getattr(source, "reading_messages", None))]
    return [*dict.fromkeys(message for reader in readers for message in reader())]


def _seeds_text(arms: Sequence[PlannedArm]) -> str:
    """Returns the number of seeds of the arms as text, with the first of them where a pilot had others."""
    fewest, most = min(len(arm.runs) for arm in arms), max(len(arm.runs) for arm in arms)
    number = f"{most} seed{'s' if most > 1 else ''}" if fewest == most else f"{fewest} to {most} seeds"
    first = arms[0].runs[0].seed
    return f"{number} from seed {first} on" if first else number
