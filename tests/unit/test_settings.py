"""Settings: shipped profiles, refusals and hashes."""

from pathlib import Path

import pytest

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import load_settings, profile_names


def test_the_paper_profile_has_the_papers_numbers() -> None:
    settings = load_settings("paper")
    assert (settings.planner.num_trajectories, settings.planner.horizon_bars) == (30_000, 72)
    assert (settings.codebook.num_codes, settings.codebook.code_dim, settings.codebook.epochs) == (10, 16, 100)
    assert (settings.selection.total_steps, settings.refinement.total_steps) == (3_000_000, 1_000_000)
    assert {name: settings.beta_1(name) for name in settings.pairs} == {"BTC": 0.5, "ETH": 0.7, "DOT": 0.5, "BNB": 0.7}
    assert {name: pair.max_position for name, pair in settings.pairs.items()} == {
        "BTC": 8,
        "ETH": 100,
        "DOT": 2500,
        "BNB": 200,
    }
    assert settings.market.bars_per_year == 52_560


def test_every_shipped_profile_loads_and_only_extended_reads_the_future() -> None:
    hindsight = {name: load_settings(name).codebook.hindsight for name in profile_names()}
    assert hindsight == {"book-table": False, "extended": True, "paper": False, "smoke": False}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"planner.horizont": 72}, "planner.horizont"),
        ({"planner.horizon_bars": 1}, "planner.horizon_bars"),
        ({"selection.alpha": float("nan")}, "selection.alpha"),
        ({"codebook.decoder": "bilstm"}, "single_change"),
        ({"splits.train_end": "2025-01-01"}, "ordered and disjoint"),
        ({"market.source": "candles"}, "needs market.path"),
        ({"seed.deeper": 1}, "seed"),
        ({"selection.lookback_bars": 8}, "lookback_bars must be 1 without a backbone, got lookback_bars=8"),
        ({"refinement.backbone": "PatchTSTBackbone"}, "lookback_bars must be at least 2, got lookback_bars=1"),
        ({"refinement.backbone_kwargs": {"n_heads": 2}}, "backbone_kwargs need a backbone"),
        (
            {
                "selection.backbone": "PatchTSTBackbone",
                "selection.lookback_bars": 8,
                "selection.backbone_kwargs": {"sequence_length": 4},
            },
            r"must not hold \['sequence_length'\]",
        ),
    ],
)
def test_a_bad_setting_is_refused_by_name(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings("smoke", {"seed": 0, **overrides})


def test_an_unknown_profile_or_pair_lists_the_choices() -> None:
    with pytest.raises(SettingsError, match="extended, paper, smoke"):
        load_settings("papper")
    with pytest.raises(SettingsError, match="BNB, BTC, DOT, ETH"):
        load_settings("smoke").pair("XRP")


def test_a_settings_file_is_read_and_its_name_is_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("planner: {horizon_bars: 36}\n")
    assert load_settings(file).planner.horizon_bars == 36
    file.write_text("planner: {horizon_bars: many}\n")
    with pytest.raises(SettingsError, match=r"mine\.yaml.*planner\.horizon_bars"):
        load_settings(file)
    with pytest.raises(SettingsError, match="does not exist"):
        load_settings(tmp_path / "absent.yaml")
    file.write_text("!!python/object/apply:os.system ['true']\n")
    with pytest.raises(SettingsError, match="not valid YAML"):
        load_settings(file)


def test_the_hash_follows_the_content_only() -> None:
    smoke = load_settings("smoke")
    assert smoke.content_hash == load_settings("smoke").content_hash
    changed = load_settings("smoke", {"refinement.beta_1": 0.3})
    assert changed.content_hash != smoke.content_hash
    assert changed.codebook.content_hash == smoke.codebook.content_hash
    here, there = (load_settings("smoke", {"market.source": "bars", "market.path": path}) for path in ("a", "b"))
    assert here.content_hash == there.content_hash != smoke.content_hash
    assert here.market.content_hash == there.market.content_hash != smoke.market.content_hash


def test_a_changed_tree_is_checked_and_has_a_hash_of_its_own():
    base = load_settings("smoke")
    changed = base.changed({"planner.horizon_bars": 36})
    assert changed == load_settings("smoke", {"planner.horizon_bars": 36})
    assert changed.content_hash != base.content_hash == base.changed({}).content_hash
    assert base.model_copy(update={"seed": 5}).content_hash != base.content_hash
    with pytest.raises(SettingsError, match=r"planner\.horizon_bars.*got 1"):
        base.changed({"planner.horizon_bars": 1})
    with pytest.raises(SettingsError, match=r"planner\.horizon:"):
        base.changed({"planner.horizon": 36})


def test_the_market_takes_the_runs_seed_unless_it_has_its_own():
    assert load_settings("smoke", {"seed": 3}).market_seed == 3
    assert load_settings("smoke", {"seed": 3, "market.seed": 0}).market_seed == 0
