"""A new bundle becomes champion only where it is better on the validation window; MLflow is a real SQLite store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import mlflow.pyfunc
import polars as pl
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

from archetype_dagster import bundle_sensors
from archetype_dagster.artifacts import Artifact, open_artifact, publish_artifact, read_json, write_json
from archetype_dagster.bundle_sensors import TRY_TAG, new_bundle
from archetype_dagster.deployment import OnnxPolicy
from archetype_dagster.deployment.bundle import POLICY_FILE, seal_bundle
from archetype_dagster.errors import ArtifactError, SealedSplitError
from archetype_dagster.jobs import CHAMPION
from archetype_dagster.market.sources import bars_for
from archetype_dagster.paper_trading.champion import Comparison, Judgement, judge_bundle, validation_bars
from archetype_dagster.pipeline.manifests import stage_manifest
from archetype_dagster.pipeline.stages import STAGES
from archetype_dagster.settings import Settings, load_settings
from archetype_dagster.settings.paper_trading import ChampionSettings
from assets.champion import AWAY_TAG
from resources.registry import CHAMPION as ALIAS
from resources.registry import BundleRegistry, RegistryError
from resources.settings import SettingsResource
from resources.storage import ArtifactStore
from resources.tracking import TrackingResource

CHANGES = {
    "market.synthetic.start": "2023-01-24T00:00:00Z",
    "market.synthetic.end": "2023-01-28T00:00:00Z",
    "splits.validation_end": "2023-01-26T12:00:00Z",
}
Define = Callable[..., dg.Definitions]


class Market:
    """The tiny market of ETH as published artifacts, and bundles of the same graphs under other rules on it."""

    def __init__(self, folder: Path, tiny: Mapping[str, Any], bundle: Path) -> None:
        self.settings: Settings = load_settings("smoke", {**tiny, **CHANGES})
        self.root = folder / "result"
        self.store = ArtifactStore(root=str(self.root))
        self.bars = bars_for(self.settings, "ETH")
        self.publish("market_bars", lambda target: self.bars.write_parquet(target / "bars.parquet"))
        self.file = self.store.open("market_bars", "ETH").path("bars.parquet")
        bundles = [_resealed(bundle, folder / f"h{bars}", horizon_bars=bars) for bars in (6, 12, 30)]
        window = validation_bars(self.file, self.settings.splits)
        judged = [(judge_bundle(bundle, window, self.settings, "ETH"), bundle) for bundle in bundles]
        judged.sort(key=lambda pair: pair[0].performance.sharpe or 0.0)
        self.judged = [one for one, _ in judged]
        self.worst, self.middle, self.best = (bundle for _, bundle in judged)

    def publish(self, kind: str, fill: Callable[[Path], object]) -> Artifact:
        directory = self.store.directory(kind, "ETH")
        manifest = stage_manifest(STAGES[kind], "ETH", self.settings, [], {})
        with publish_artifact(directory, manifest) as target:
            fill(target)
        return open_artifact(directory, kind=kind)

    def export(self, bundle: Path) -> Artifact:
        return self.publish("onnx_policy", lambda target: shutil.copytree(bundle, target, dirs_exist_ok=True))


def _resealed(source: Path, target: Path, **changes: Any) -> Path:
    shutil.copytree(source, target)
    write_json(target / POLICY_FILE, {**read_json(target / POLICY_FILE), **changes})
    seal_bundle(target, [path.name for path in target.iterdir() if path.name != "checksums.json"])
    return target


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory, tiny: Mapping[str, Any], small_bundle: Path) -> Market:
    return Market(tmp_path_factory.mktemp("champion"), tiny, small_bundle)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def compare(
    root: Path, define: Define, instance: dg.DagsterInstance, tracking: TrackingResource
) -> dg.ExecuteInProcessResult:
    job = define(root, CHANGES, tracking).resolve_job_def(CHAMPION)
    return job.execute_in_process(partition_key="ETH", instance=instance, raise_on_error=False)


def verdict(result: dg.ExecuteInProcessResult) -> Mapping[str, Any]:
    assert result.success
    (made,) = result.asset_materializations_for_node("champion_comparison")
    return {name: value.value for name, value in made.metadata.items()}


def reason(failed: dg.ExecuteInProcessResult) -> str:
    assert not failed.success
    (failure,) = failed.filter_events(lambda event: event.is_step_failure)
    return failure.step_failure_data.user_failure_data.description


def noted(client: MlflowClient, version: str) -> tuple[str | None, str | None]:
    tags = client.get_model_version("archetype-ETH", version).tags
    return tags.get("archetype.promotes"), tags.get("archetype.compared_with_version")


@pytest.mark.slow
def test_the_alias_moves_only_to_a_better_bundle(market: Market, define_tiny: Define, instance: dg.DagsterInstance):
    tracking = TrackingResource(experiment="moves")
    told = []
    for bundle in (market.middle, market.worst, market.best, market.best):
        market.export(bundle)
        told.append(verdict(compare(market.root, define_tiny, instance, tracking)))
    assert [one["verdict"] for one in told] == [
        "version 1 is the first champion",
        "version 2 is no better than champion 1",
        "version 3 is better than champion 1 and takes its place",
        "version 3 is the champion already",
    ]
    assert [one["promoted"] for one in told] == [True, False, True, False]
    assert told[2]["details"]["champion"]["bundle"] == market.judged[1].bundle
    assert told[2]["details"]["candidate"] == market.judged[2].as_dict()
    client = MlflowClient(tracking_uri=f"sqlite:///{market.root.parent / 'mlruns' / 'mlflow.db'}")
    assert client.get_model_version_by_alias("archetype-ETH", ALIAS).version == 3
    assert len(client.search_model_versions("name = 'archetype-ETH'")) == 3
    assert [noted(client, version) for version in "123"] == [("True", "none"), ("False", "1"), ("True", "1")]

    # Without an answer the run fails with a clear line, and the alias is where it was.
    away = TrackingResource(tracking_uri="http://127.0.0.1:9", experiment="moves")
    for broken, message, comes_again in (
        (away, "model registry cannot be used", True),
        (TrackingResource(enabled=False), "switched off", False),
    ):
        failed = compare(market.root, define_tiny, instance, broken)
        assert message in reason(failed)
        assert (instance.get_run_by_id(failed.run_id).tags.get(AWAY_TAG) == failed.run_id) == comes_again
    assert client.get_model_version_by_alias("archetype-ETH", ALIAS).version == 3

    registry = BundleRegistry.connect(None, "moves", result_root=market.root)
    champion = registry.champion("ETH")
    assert champion is not None
    with pytest.raises(RegistryError, match="the champion of ETH is now version 3, compared was with none"):
        registry.promote(champion, instead_of=None, pair="ETH")
    assert registry.champion("BTC") is None


@pytest.mark.slow
def test_a_registry_that_dies_in_between_is_told_as_it_is_and_the_next_comparison_settles_it(
    market: Market, define_tiny: Define, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    market.export(market.middle)
    root = Path(shutil.copytree(market.root, tmp_path / "result"))
    tracking, moves = TrackingResource(experiment="dies"), MlflowClient.set_registered_model_alias

    def dies(*_: Any) -> None:
        raise MlflowException("gone", error_code=TEMPORARILY_UNAVAILABLE)

    def dies_afterwards(client: MlflowClient, *arguments: Any) -> None:
        moves(client, *arguments)
        dies()

    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "set_model_version_tag", dies)
        assert "TEMPORARILY_UNAVAILABLE); this call moves no alias" in reason(
            compare(root, define_tiny, instance, tracking)
        )
    registry = BundleRegistry.connect(None, "dies", result_root=root)
    assert registry.champion("ETH") is None
    for move, stands in ((dies, None), (dies_afterwards, "1")):
        with monkeypatch.context() as broken:
            broken.setattr(MlflowClient, "set_registered_model_alias", move)
            told = reason(compare(root, define_tiny, instance, tracking))
        assert "whether the alias moved is not known; compare again" in told
        champion = registry.champion("ETH")
        assert (None if champion is None else champion.version) == stands
        assert noted(registry.store.client, "1") == ("True", "none")
    again = verdict(compare(root, define_tiny, instance, tracking))
    assert again["verdict"] == "version 1 is the champion already"
    assert noted(registry.store.client, "1") == ("True", "none")


def test_a_registered_bundle_is_a_model_without_pickle_that_decides_as_it_did(market: Market, tmp_path: Path):
    registry = BundleRegistry.connect(None, "model", result_root=market.root)
    registered = registry.register(market.best, "BNB", {"archetype.pair": "BNB"})
    assert registry.register(market.best, "BNB", {}) == registered
    assert OnnxPolicy.load(registry.fetch(registered, tmp_path)).bundle.hash == registered.bundle
    (model,) = (path.parent for path in tmp_path.rglob("MLmodel"))
    names = {path.name for path in model.rglob("*") if path.is_file()}
    assert names == {
        *("MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt"),
        *(path.name for path in market.best.iterdir()),
    }
    requirements = (model / "requirements.txt").read_text()
    assert {line.split("==")[0] for line in requirements.split()} >= {"archetype-dagster", "onnxruntime", "polars"}
    loaded = mlflow.pyfunc.load_model(str(model))
    assert {"timestamp", "close", "ask5_size"} <= set(loaded.metadata.get_input_schema().input_names())
    rows = market.bars.head(90)
    policy = OnnxPolicy.load(market.best)
    expected = [policy.on_bar(row) for row in rows.iter_rows(named=True)]
    naive = rows.with_columns(pl.col("timestamp").dt.replace_time_zone(None)).select(
        loaded.metadata.get_input_schema().input_names()
    )
    frame = naive.to_pandas()
    for _ in range(2):
        found = loaded.predict(frame)
        assert found["tau"].tolist() == [-1 if one is None else one.tau for one in expected]
        assert found["action"].tolist() == [
            ("short", "flat", "long")[1 if one is None else one.action] for one in expected
        ]


def test_a_bundle_changed_in_the_registry_is_refused(market: Market, tmp_path: Path):
    registry = BundleRegistry.connect(None, "changed", result_root=market.root)
    registered = registry.register(market.middle, "DOT", {})
    (stored,) = Path(registered.source.removeprefix("file://")).rglob(POLICY_FILE)
    stored.write_text(stored.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ArtifactError, match=r"policy\.json does not have the hash"):
        registry.fetch(registered, tmp_path)


def test_an_upload_that_breaks_off_leaves_a_failed_run_and_no_version(market: Market, tmp_path: Path):
    registry = BundleRegistry.connect(None, "broken", result_root=tmp_path / "result")
    # The folder of the uploads cannot be made where a file of its name lies.
    (tmp_path / "mlruns" / "artifacts").touch()
    with pytest.raises(RegistryError, match="the MLflow model registry cannot be used"):
        registry.register(market.best, "BTC", {})
    client, experiment = registry.store.client, registry.store.experiment_id
    assert [run.info.status for run in client.search_runs([experiment])] == ["FAILED"]
    assert client.search_model_versions("name = 'archetype-BTC'") == []
    (tmp_path / "mlruns" / "artifacts").unlink()
    assert registry.register(market.best, "BTC", {}).version == "1"


def test_something_else_than_a_bundle_in_the_registry_is_refused(market: Market, tmp_path: Path):
    registry = BundleRegistry.connect(None, "strange", result_root=tmp_path / "result")
    registered = registry.register(market.best, "BTC", {})
    (stored,) = Path(registered.source.removeprefix("file://")).rglob(POLICY_FILE)
    (stored.parent.parent / "more").mkdir()
    (stored.parent.parent / "more" / "file").touch()
    with pytest.raises(RegistryError, match="version 1 of archetype-BTC holds 2 folders instead of one bundle"):
        registry.fetch(registered, tmp_path)


def test_the_test_split_is_not_read(market: Market, tmp_path: Path):
    splits = market.settings.splits
    later = pl.col("timestamp") >= splits.validation_end
    ruined = market.bars.with_columns(
        pl.when(later).then(None).otherwise(pl.col(name)).alias(name) for name in ("close", "bid1_price", "ask1_price")
    )
    ruined.write_parquet(tmp_path / "bars.parquet")
    window = validation_bars(tmp_path / "bars.parquet", splits)
    assert window.equals(validation_bars(market.file, splits))
    assert window["timestamp"][-1] < splits.validation_end
    assert judge_bundle(market.best, window, market.settings, "ETH") == market.judged[2]
    with pytest.raises(SealedSplitError, match="a champion is chosen on bars that end before"):
        judge_bundle(market.best, market.bars, market.settings, "ETH")


def test_a_bundle_of_other_bars_is_not_compared(market: Market, tmp_path: Path):
    other = _resealed(market.best, tmp_path / "other", bar_minutes=15)
    with pytest.raises(ArtifactError, match="the bundle's bar_minutes is 15, compared is 10"):
        judge_bundle(other, validation_bars(market.file, market.settings.splits), market.settings, "ETH")


def test_what_counts_as_better(market: Market):
    worst, _, best = market.judged

    def promotes(candidate: Judgement, champion: Judgement | None, **settings: Any) -> bool:
        return Comparison(candidate, champion, ChampionSettings(**settings)).promotes

    def with_sharpe(judged: Judgement, sharpe: float | None) -> Judgement:
        return replace(judged, performance=replace(judged.performance, sharpe=sharpe))

    assert promotes(worst, None)
    assert promotes(best, worst)
    assert not promotes(worst, best)
    assert not promotes(best, best)
    gap = float(best.performance.sharpe or 0.0) - float(worst.performance.sharpe or 0.0)
    assert not promotes(best, worst, margin=gap + 0.01)
    assert promotes(best, worst, metric="total_return") == (
        best.performance.total_return > worst.performance.total_return
    )
    assert promotes(with_sharpe(best, -1.0), with_sharpe(worst, None))
    assert not promotes(with_sharpe(best, None), with_sharpe(worst, -1.0))


def exported_event(instance: dg.DagsterInstance, pair: str, content: str, overrides: Mapping[str, Any]) -> str:
    """A run that materialises `onnx_policy` as the graph does, and its id."""

    @dg.asset(
        name="onnx_policy",
        partitions_def=dg.StaticPartitionsDefinition(["BTC", "ETH", "DOT", "BNB"]),
        required_resource_keys={"settings"},
    )
    def asset() -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"content_hash": content})

    result = dg.materialize(
        [asset],
        partition_key=pair,
        instance=instance,
        resources={"settings": SettingsResource.configure_at_launch()},
        run_config={"resources": {"settings": {"config": {"overrides": dict(overrides)}}}},
    )
    return result.run_id


def tick(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, cursor: str | None
) -> tuple[list[dg.RunRequest], str | None]:
    context = dg.build_sensor_context(instance, cursor=cursor, repository_def=repository)
    data = new_bundle.evaluate_tick(context)
    return list(data.run_requests or []), data.cursor or cursor


def test_the_sensor_notices_each_pairs_newest_bundle_once(
    define_tiny: Define, tmp_path: Path, instance: dg.DagsterInstance
):
    repository = define_tiny(tmp_path / "result").get_repository_def()
    assert repository.get_sensor_def("new_bundle").job_name == CHAMPION
    look = partial(tick, instance, repository)
    assert look(None) == ([], None)
    exported_event(instance, "ETH", "old", {"seed": 1})
    exported_event(instance, "BTC", "other", {})
    run_id = exported_event(instance, "ETH", "new", {"seed": 2})
    requests, cursor = look(None)
    assert [request.partition_key for request in requests] == ["BTC", "ETH"]
    assert requests[1].run_config == {"resources": {"settings": {"config": {"overrides": {"seed": 2}}}}}
    assert run_id in requests[1].tags["archetype/reason"]
    assert look(cursor) == ([], cursor)
    exported_event(instance, "DOT", "third", {})
    exported_event(instance, "ETH", "new", {})
    requests, cursor = look(cursor)
    assert [request.partition_key for request in requests] == ["DOT"], "ETH's bundle is the one compared before"
    keys = set()
    for content in ("old", "new"):
        exported_event(instance, "ETH", content, {})
        (request,), cursor = look(cursor)
        keys.add(request.run_key)
    assert len(keys) == 2
    exported_event(instance, "ETH", "old", {})
    (request,), _ = look(cursor)
    assert request.run_key not in keys, "a bundle that comes back is compared again"


def test_the_sensor_goes_on_after_bundles_reported_by_hand(
    define_tiny: Define, tmp_path: Path, instance: dg.DagsterInstance
):
    look = partial(tick, instance, define_tiny(tmp_path / "result").get_repository_def())
    exported_event(instance, "ETH", "old", {})
    _, cursor = look(None)
    for pair in ("ETH", "nobody's", None):
        instance.report_runless_asset_event(dg.AssetMaterialization("onnx_policy", partition=pair))
    (request,), later = look(cursor)
    assert (request.partition_key, request.tags["archetype/reason"]) == ("ETH", "reported by hand")
    assert look(later) == ([], later)
    exported_event(instance, "ETH", "old", {})
    (request,), _ = look(later)
    assert request.partition_key == "ETH", "what was there in between says nothing of its content"


def failed_comparison(instance: dg.DagsterInstance, *, away: bool = True, tries: int = 0, seed: int = 0) -> str:
    """A run of the comparison's name for ETH that fails as it does where the registry is away, and its id."""

    @dg.op(required_resource_keys={"settings"})
    def fails(context) -> None:
        if away:
            context.instance.add_run_tags(context.run_id, {AWAY_TAG: context.run_id})
        raise dg.Failure("the registry does not answer", allow_retries=False)

    @dg.job(name=CHAMPION, resource_defs={"settings": SettingsResource.configure_at_launch()})
    def comparison() -> None:
        fails()

    tags = {"dagster/partition": "ETH", **({TRY_TAG: str(tries)} if tries else {})}
    result = comparison.execute_in_process(
        run_config={"resources": {"settings": {"config": {"overrides": {"seed": seed}}}}},
        instance=instance,
        tags=tags,
        raise_on_error=False,
    )
    return result.run_id


def test_a_comparison_that_failed_for_want_of_the_registry_is_asked_for_again_five_times(
    define_tiny: Define, tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    look = partial(tick, instance, define_tiny(tmp_path / "result").get_repository_def())
    exported_event(instance, "ETH", "new", {})
    _, cursor = look(None)
    failed_comparison(instance)
    assert look(cursor) == ([], cursor), "it waits first"
    monkeypatch.setattr(bundle_sensors, "_FIRST_WAIT_SECONDS", 0.0)
    keys = set()
    for tries in range(5):
        run_id = failed_comparison(instance, tries=tries, seed=tries)
        (request,), again = look(cursor)
        assert again == cursor
        assert look(cursor) == ([request], cursor), "the key keeps it from running twice"
        keys.add(request.run_key)
        assert (request.partition_key, request.tags[TRY_TAG]) == ("ETH", str(tries + 1))
        assert run_id in request.tags["archetype/reason"]
        assert request.run_config == {"resources": {"settings": {"config": {"overrides": {"seed": tries}}}}}
    assert len(keys) == 5
    failed_comparison(instance, tries=5)
    assert look(cursor) == ([], cursor), "it is given up"
    failed_comparison(instance)
    failed_comparison(instance, away=False)
    assert look(cursor) == ([], cursor), "the newest failed for another reason"
    failed_comparison(instance)
    exported_event(instance, "ETH", "newer", {})
    (request,), _ = look(cursor)
    assert TRY_TAG not in request.tags, "a new bundle begins anew"
