"""The stages of the graph and, per stage, exactly the settings that its content depends on.

This table is the only place that says what a changed setting invalidates.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from archetype_dagster.artifacts import file_hash
from archetype_dagster.settings import Settings, config_text
from archetype_dagster.settings.baseline_names import BASELINES
from archetype_dagster.types import JsonDict


@dataclass(frozen=True)
class Stage:
    """One asset of the graph.

    Attributes:
        kind: asset name and artifact kind.
        group: asset group.
        parents: stages whose artifacts it is made from.
        settings: dotted names of the settings the stage reads; a section stands for all its values.
            `pair.*` are the pair's own, `calibration.*` the content of a shipped calibration file.
        seeded: whether the stage draws random numbers.
        code_version: raised whenever the algorithm changes its output.
        gpu: whether the stage runs networks, and so waits its turn in the `gpu` pool of a machine that has a GPU.
        tracked: whether its files are copied into the tracking store.
        per_pair: whether it is partitioned by pair.
        parts: what it is partitioned by besides the pair; as a parent, such a stage stands for all its parts
            that there are, the months for none where `market.by_month` is off.
    """

    kind: str
    group: str
    parents: tuple[str, ...]
    settings: tuple[str, ...]
    seeded: bool = False
    code_version: str = "1"
    gpu: bool = False
    tracked: bool = False
    per_pair: bool = True
    parts: Literal["month", "window"] | None = None


MARKET_BARS: Final = "market_bars"
RAW_BARS: Final = "raw_bars"
WALK_FORWARD_WINDOW: Final = "walk_forward_window"
SWEEP_STUDY: Final = "sweep_study"
BEST_SETTINGS: Final = "best_settings"
SWEEPS_GROUP: Final = "sweeps"
# Assets of no pair, made from specifications of their own and not from the settings tree.
POLICIES_GROUP: Final = "policies"
# Comparisons with the champion: they depend on what the registry holds, so that no key tells whether they are current.
REGISTRY_GROUP: Final = "registry"
RECENT_EVALUATION: Final = "recent_evaluation"


def baseline_stage(name: str) -> str:
    """Name of the stage that fits a baseline."""
    return f"baseline_{name}"


_DATASET = ("execution.execution_delay_bars", "planner.horizon_bars", "pair.max_position")
_TRAINING = (
    "splits.train_start",
    "splits.train_end",
    "splits.validation_start",
    "splits.validation_end",
    *_DATASET,
)

# Whatever trains the phases again reads all that trained them.
PAPER_PARTS: Final = (
    "robustness",
    "embedding_study",
    "refinement_study",
    "horizon_study",
    "code_count_study",
    "seed_study",
    "walk_forward",
)
_EXPERIMENT = (
    "market",
    "splits",
    "execution",
    "features",
    "planner",
    "codebook",
    "selection",
    "refinement",
    "pair",
    "calibration",
)
_TRAINED_AGAIN = (
    "feature_table",
    "dp_trajectories",
    "vq_codebook",
    "archetype_returns",
    "selection_checkpoint",
    "refinement_checkpoint",
)
_SENSITIVITIES = ("commission_rates", "depth_policies", "delays_bars", "capital_multiples")

_TABLE = (
    Stage(
        RAW_BARS,
        "market",
        (),
        (
            "market.source",
            "market.prices_source",
            "market.bar_minutes",
            "market.book_levels",
            "market.ingestion.malformed_book",
            "market.ingestion.malformed_trade",
            "market.ingestion.malformed_candle",
            "market.ingestion.repeated_record",
            "market.ingestion.incomplete_bar",
            "market.ingestion.one_sided_trades",
            "pair.base",
            "pair.quote",
        ),
        parts="month",
    ),
    Stage(
        MARKET_BARS,
        "market",
        (RAW_BARS,),
        ("market", "pair", "calibration.modelled_book"),
        seeded=True,
        code_version="2",
    ),
    Stage(
        "feature_table",
        "market",
        ("market_bars",),
        (
            "features",
            "execution.commission_rate",
            "execution.depth_policy",
            "splits.train_start",
            "splits.train_end",
            "planner.horizon_bars",
            "execution.execution_delay_bars",
            "pair.max_position",
            "pair.liquidity_scale",
            "calibration.impact_curve",
        ),
    ),
    Stage(
        "dp_trajectories",
        "discovery",
        ("feature_table",),
        ("planner", "splits.train_start", "splits.train_end", *_DATASET),
        seeded=True,
    ),
    Stage(
        "vq_codebook",
        "discovery",
        ("feature_table", "dp_trajectories"),
        ("codebook", "splits.train_start", "splits.train_end", *_DATASET),
        seeded=True,
        gpu=True,
        tracked=True,
    ),
    Stage(
        "archetype_returns",
        "selection",
        ("feature_table", "vq_codebook"),
        ("planner.gamma", "planner.trade_constraint", "selection.stride_bars", *_TRAINING),
        gpu=True,
    ),
    Stage(
        "selection_checkpoint",
        "selection",
        ("feature_table", "archetype_returns"),
        ("selection", *_TRAINING),
        seeded=True,
        gpu=True,
        tracked=True,
    ),
    Stage(
        "refinement_checkpoint",
        "refinement",
        ("feature_table", "vq_codebook", "selection_checkpoint"),
        ("refinement", *_TRAINING),
        seeded=True,
        gpu=True,
        tracked=True,
    ),
    Stage(
        "onnx_policy",
        "deployment",
        ("feature_table", "vq_codebook", "selection_checkpoint", "refinement_checkpoint"),
        (
            "execution.commission_rate",
            "execution.depth_policy",
            "execution.horizon_boundary",
            "features.scale",
            "market.bar_minutes",
            "refinement.override",
            "pair.base",
            "pair.quote",
            "pair.liquidity_scale",
            "calibration.impact_curve",
            *_DATASET,
        ),
        seeded=True,
        code_version="2",
        tracked=True,
    ),
    # The report states every setting it was made with.
    Stage(
        "evaluation_report",
        "evaluation",
        ("market_bars", "feature_table", "vq_codebook", "selection_checkpoint", "refinement_checkpoint"),
        (
            "market",
            "splits",
            "execution",
            "features",
            "planner",
            "codebook",
            "selection",
            "refinement",
            "evaluation.random_archetype_draws",
            "evaluation.archetype_examples",
            "pair",
        ),
        seeded=True,
        code_version="2",
        tracked=True,
    ),
    Stage(
        "leaderboard",
        "evaluation",
        ("evaluation_report", "method_comparison", "seed_study"),
        (),
        per_pair=False,
        code_version="2",
    ),
    *(
        Stage(
            baseline_stage(name),
            "baselines",
            ("feature_table",),
            ("baselines", *_TRAINING),
            seeded=True,
            gpu=baseline.is_learner,
            tracked=baseline.is_learner,
        )
        for name, baseline in BASELINES.items()
    ),
    Stage(
        "method_comparison",
        "judging",
        ("market_bars", "feature_table", "evaluation_report", *map(baseline_stage, BASELINES)),
        ("market", "splits", "execution", "planner.horizon_bars", "pair"),
        seeded=True,
        tracked=True,
    ),
    *(
        Stage(
            name,
            "studies",
            ("market_bars", "refinement_checkpoint"),
            (*_EXPERIMENT, *(f"studies.{field}" for field in fields)),
            seeded=True,
            gpu=True,
            tracked=True,
        )
        for name, fields in {
            "embedding_study": (),
            "refinement_study": (),
            "horizon_study": ("horizons_bars",),
            "code_count_study": ("code_counts",),
        }.items()
    ),
    Stage(
        "seed_study",
        "studies",
        ("market_bars", "refinement_checkpoint", "method_comparison"),
        (*_EXPERIMENT, "baselines", "studies.seeds", "statistics.confidence"),
        seeded=True,
        gpu=True,
        code_version="2",
        tracked=True,
    ),
    Stage(
        WALK_FORWARD_WINDOW,
        "studies",
        ("market_bars",),
        (*_EXPERIMENT, "studies.walk_forward_windows"),
        seeded=True,
        gpu=True,
        parts="window",
    ),
    Stage(
        "walk_forward",
        "studies",
        ("market_bars", WALK_FORWARD_WINDOW),
        (*_EXPERIMENT, "studies.walk_forward_windows"),
        seeded=True,
        gpu=True,
        tracked=True,
    ),
    # The test split is out of a trial's reach, so its dates are none of the sweep's settings.
    Stage(
        SWEEP_STUDY,
        SWEEPS_GROUP,
        ("market_bars",),
        (*(name for name in _EXPERIMENT if name != "splits"), *_TRAINING, "sweep"),
        seeded=True,
        gpu=True,
        tracked=True,
    ),
    Stage(BEST_SETTINGS, SWEEPS_GROUP, (SWEEP_STUDY,), (), tracked=True),
    Stage(
        "robustness",
        "judging",
        (
            "market_bars",
            "feature_table",
            "vq_codebook",
            "selection_checkpoint",
            "refinement_checkpoint",
            "method_comparison",
            "embedding_study",
            "refinement_study",
            "horizon_study",
            "code_count_study",
            "seed_study",
        ),
        (*_EXPERIMENT, "statistics", *(f"studies.{field}" for field in _SENSITIVITIES)),
        seeded=True,
        code_version="2",
        tracked=True,
    ),
    Stage(
        "paper_tables",
        "judging",
        ("evaluation_report", "method_comparison", *PAPER_PARTS),
        (),
        per_pair=False,
        code_version="2",
    ),
    Stage(
        "trade_audit",
        "judging",
        ("market_bars", "feature_table", "evaluation_report"),
        ("execution", "market.bar_minutes", "splits", "planner.horizon_bars", "pair"),
        code_version="2",
    ),
    # The months are those there are now, whatever the policy was made from.
    Stage(
        RECENT_EVALUATION,
        "monitoring",
        (RAW_BARS, "feature_table", "vq_codebook", "selection_checkpoint", "refinement_checkpoint"),
        (
            "market",
            "splits",
            "execution",
            "features",
            "planner",
            "codebook",
            "selection",
            "refinement",
            "evaluation.random_archetype_draws",
            "evaluation.archetype_examples",
            "operations.recent_days",
            "pair",
            "calibration",
        ),
        seeded=True,
        tracked=True,
    ),
)
_VERSIONS = {stage.kind: stage.code_version for stage in _TABLE}


def _with_what_it_trains(stage: Stage) -> Stage:
    """The stage; a study's or sweep's version is followed by those of the phases, none of which need be its parent."""
    if stage.group != "studies" and stage.kind != SWEEP_STUDY:
        return stage
    versions = (stage.code_version, *(_VERSIONS[kind] for kind in _TRAINED_AGAIN))
    return replace(stage, code_version=".".join(versions))


STAGES: Final[Mapping[str, Stage]] = MappingProxyType({stage.kind: _with_what_it_trains(stage) for stage in _TABLE})

JUDGING_GROUPS: Final = frozenset({"baselines", "judging", "monitoring", "studies", SWEEPS_GROUP})
CORE_STAGES: Final = tuple(
    kind for kind, stage in STAGES.items() if stage.group not in JUDGING_GROUPS and stage.parts is None
)


def stage_settings(stage: Stage, settings: Settings, pair: str | None) -> JsonDict:
    """The values the stage reads, by dotted name, as JSON.

    `refinement.beta_1` is the value used for the pair. `market.path` and `market.by_month` are left out,
    because the content of the files counts and not where they lie or in how many steps they are read, and
    so are the seed (see `stage_seed`), the parts of `market` that belong to another source, the PPO
    settings where the objective is exact and the window's where there is no backbone. Of a backbone's
    `pretrained_path` the file's content counts.
    """
    values: JsonDict = {}
    _flatten(_settings_tree(settings, pair), "", values)
    chosen = tuple(stage.settings)
    return {
        name: value
        for name, value in sorted(values.items())
        if any(name == wanted or name.startswith(f"{wanted}.") for wanted in chosen)
    }


def stage_seed(stage: Stage, settings: Settings) -> int:
    """Seed of what the stage draws, 0 where it draws nothing: a study of seeds may keep one market for all."""
    if not stage.seeded:
        return 0
    return settings.market_seed if stage.kind == MARKET_BARS else settings.seed


def _settings_tree(settings: Settings, pair: str | None) -> dict[str, Any]:
    tree = settings.model_dump(mode="json", exclude={"pairs", "seed"})
    tree["calibration"] = {"impact_curve": _config_hash("impact_curve.yaml")}
    market = tree["market"]
    del market["path"], market["prices_path"], market["seed"], market["by_month"]
    unused = {
        "synthetic": ("modelled_book", "prices_source", "ingestion"),
        "bars": ("synthetic", "book_levels", "modelled_book", "prices_source", "ingestion"),
        "candles": ("synthetic", "book_levels"),
    }
    for section in unused.get(settings.market.source, ("synthetic",)):
        del market[section]
    # A vendor's source may turn out to hold no book.
    if "modelled_book" in market:
        tree["calibration"]["modelled_book"] = _config_hash(settings.market.modelled_book.calibration)
    for phase in ("selection", "refinement"):
        if tree[phase]["objective"] == "expected":
            del tree[phase]["ppo"]
        if tree[phase]["backbone"] is None:
            del tree[phase]["backbone"], tree[phase]["lookback_bars"], tree[phase]["backbone_kwargs"]
        elif "pretrained_path" in tree[phase]["backbone_kwargs"]:
            pretrained = Path(tree[phase]["backbone_kwargs"]["pretrained_path"])
            # A missing file is refused where the network is made.
            tree[phase]["backbone_kwargs"]["pretrained_path"] = file_hash(pretrained) if pretrained.is_file() else None
    if pair is not None:
        tree["pair"] = settings.pair(pair).model_dump(mode="json", exclude={"beta_1"})
        tree["refinement"]["beta_1"] = settings.beta_1(pair)
    return tree


def _config_hash(name: str) -> str:
    return hashlib.sha256(config_text(name).encode()).hexdigest()


def _flatten(value: Any, name: str, into: JsonDict) -> None:
    if isinstance(value, dict):
        for key, child in value.items():
            _flatten(child, f"{name}.{key}" if name else key, into)
    else:
        into[name] = value
