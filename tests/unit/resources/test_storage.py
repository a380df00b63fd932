from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from archetype_dagster.artifacts import Artifact, Manifest, publish_artifact
from archetype_dagster.errors import ArtifactError
from resources.storage import ArtifactIOManager, ArtifactStore

PAIRS = dg.StaticPartitionsDefinition(["BTC", "ETH", "DOT", "BNB"])


def publish(store: ArtifactStore, kind: str, pair: str, text: str = "content") -> Artifact:
    manifest = Manifest(kind, pair, f"key of {text}", {}, {}, 0, "1", "data")
    with publish_artifact(store.directory(kind, pair), manifest) as folder:
        (folder / "file.txt").write_text(text)
    return store.open(kind, pair)


def load(store: ArtifactStore, kind: str, *, every_pair: bool = False) -> Any:
    """What an asset of the partition ETH is given for its input `kind`."""
    given = []

    @dg.asset(name=kind, partitions_def=PAIRS)
    def upstream() -> None:
        raise AssertionError("only its input is wanted")

    @dg.asset(partitions_def=PAIRS, ins={"value": dg.AssetIn(kind)})
    def of_one(value: Artifact) -> None:
        given.append(value)

    @dg.asset(ins={"value": dg.AssetIn(kind, partition_mapping=dg.AllPartitionMapping())})
    def of_all(value: dict[str, Artifact]) -> None:
        given.append(value)

    consumer = of_all if every_pair else of_one
    dg.materialize(
        [upstream, consumer],
        selection=[consumer],
        partition_key=None if every_pair else "ETH",
        resources={"io_manager": ArtifactIOManager(store=store)},
    )
    return given[0]


def test_folders_follow_the_published_layout(tmp_path: Path):
    store = ArtifactStore(root=str(tmp_path))
    assert store.directory("vq_codebook", "ETH") == tmp_path / "ETH" / "phase1_archetype_discovery"
    assert store.directory("evaluation_report", "BTC") == tmp_path / "BTC" / "evaluation"
    assert store.directory("leaderboard", None) == tmp_path / "leaderboard"
    assert (
        store.resume_point("vq_codebook", "ETH", "k").path == tmp_path / "ETH" / ".resume" / "vq_codebook.safetensors"
    )


def test_an_input_is_the_verified_artifact_of_its_pair(tmp_path: Path):
    store = ArtifactStore(root=str(tmp_path))
    made = publish(store, "market_bars", "ETH")
    assert load(store, "market_bars") == made


def test_an_input_over_all_pairs_holds_those_that_exist(tmp_path: Path):
    store = ArtifactStore(root=str(tmp_path))
    made = {pair: publish(store, "evaluation_report", pair, pair) for pair in ("BTC", "DOT")}
    assert load(store, "evaluation_report", every_pair=True) == made


def test_a_truncated_artifact_is_refused_when_loaded(tmp_path: Path):
    store = ArtifactStore(root=str(tmp_path))
    made = publish(store, "market_bars", "ETH")
    (made.directory / "file.txt").write_text("cont")
    with pytest.raises(dg.Failure, match=r"file\.txt does not have the hash its manifest states; materialise"):
        load(store, "market_bars")


def test_a_missing_artifact_says_what_to_run(tmp_path: Path):
    with pytest.raises(dg.Failure, match=r"holds no market_bars.*materialise market_bars first"):
        load(ArtifactStore(root=str(tmp_path)), "market_bars")


def test_an_artifact_published_elsewhere_is_refused(tmp_path: Path):
    made = publish(ArtifactStore(root=str(tmp_path / "other")), "market_bars", "ETH")
    context = dg.build_output_context(asset_key=dg.AssetKey("market_bars"), partition_key="ETH")
    with pytest.raises(ArtifactError, match="expected"):
        ArtifactIOManager(store=ArtifactStore(root=str(tmp_path / "here"))).handle_output(context, made)
