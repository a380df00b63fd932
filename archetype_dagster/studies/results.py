"""What one run of a study earned on validation and test, bar by bar, as files of one small artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.performance import Performance, performance
from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings import Settings
from archetype_dagster.studies.training import StudyRun
from archetype_dagster.types import ActionArray, FloatArray, IndexArray, JsonDict

FACTS_FILE: Final = "result.json"


@dataclass(frozen=True)
class AccountPath:
    """One account on the T bars of a split.

    Attributes:
        actions: int8 (T,), action wanted at each bar, also where the account was ruined before.
        net_value: float64 (T + 1,), initial capital and net value of each bar, quote units; zero from ruin on.
        trades: bars with a trade.
    """

    actions: ActionArray
    net_value: FloatArray
    trades: int

    @classmethod
    def of(cls, accounts: SplitAccounts, actions: ActionArray) -> Self:
        """The account of one action per dataset row."""
        ledger: Ledger = accounts.trade(actions)
        return cls(accounts.every_bar(actions), accounts.whole_path(ledger), ledger.trades)

    @property
    def returns(self) -> FloatArray:
        """r_t = V_t / V_{t-1} - 1, float64 (T,); -1 at ruin and 0 after it, when nothing is left."""
        before = self.net_value[:-1]
        change = np.divide(self.net_value[1:], before, out=np.ones_like(before), where=before > 0)
        return np.asarray(change - 1)


@dataclass(frozen=True)
class SplitResult:
    """A policy's accounts on the T bars of a split.

    Attributes:
        timestamps: datetime64[us] (T,), bar ends, UTC.
        horizon_starts: int64 (n,), bar at which each horizon starts.
        accounts: by name, `no_refinement` and, where Phase III was trained, `full`.
    """

    timestamps: NDArray[np.datetime64]
    horizon_starts: IndexArray
    accounts: Mapping[str, AccountPath]

    def save(self, path: Path) -> JsonDict:
        """Write the per-bar columns as Parquet; returns what goes into JSON beside it."""
        starts = np.zeros(len(self.timestamps), dtype=np.bool_)
        starts[self.horizon_starts] = True
        columns = [
            pl.Series("timestamp", self.timestamps).dt.replace_time_zone("UTC"),
            pl.Series("horizon_start", starts),
        ]
        for name, account in self.accounts.items():
            columns.append(pl.Series(f"action_{name}", account.actions))
            columns.append(pl.Series(f"net_value_{name}", account.net_value[1:]))
        pl.DataFrame(columns).write_parquet(path)
        return {
            name: {"initial_capital": float(account.net_value[0]), "trades": account.trades}
            for name, account in self.accounts.items()
        }

    @classmethod
    def load(cls, path: Path, facts: JsonDict) -> Self:
        """Read what `save` wrote; `ArtifactError` where it is missing or damaged, KeyError where a fact is."""
        schema: dict[str, pl.DataType] = {"timestamp": pl.Datetime("us", "UTC"), "horizon_start": pl.Boolean()}
        for name in facts:
            schema |= {f"action_{name}": pl.Int8(), f"net_value_{name}": pl.Float64()}
        frame = read_table(path, schema)
        return cls(
            timestamps=frame["timestamp"].dt.replace_time_zone(None).to_numpy(),
            horizon_starts=np.flatnonzero(frame["horizon_start"].to_numpy()).astype(np.int64),
            accounts={
                name: AccountPath(
                    frame[f"action_{name}"].to_numpy(),
                    np.concatenate([[values["initial_capital"]], frame[f"net_value_{name}"].to_numpy()]),
                    values["trades"],
                )
                for name, values in facts.items()
            },
        )


@dataclass(frozen=True)
class StudyAccounts:
    """What is kept of a run: its accounts on the validation and on the test split, and sources of the test books."""

    validation: SplitResult
    test: SplitResult
    book_sources: tuple[str, ...]

    def save(self, directory: Path) -> None:
        """Write validation.parquet, test.parquet and result.json into an existing folder."""
        facts: JsonDict = {"book_sources": list(self.book_sources)}
        for split in ("validation", "test"):
            facts[split] = getattr(self, split).save(directory / f"{split}.parquet")
        write_json(directory / FACTS_FILE, facts)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; `ArtifactError` where a file is missing, damaged or lacks a field."""
        facts = read_json(directory / FACTS_FILE)
        try:
            validation, test = (
                SplitResult.load(directory / f"{split}.parquet", facts[split]) for split in ("validation", "test")
            )
            return cls(validation, test, tuple(facts["book_sources"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{directory / FACTS_FILE} lacks {error}") from error


@dataclass(frozen=True)
class StudyResult:
    """One run of a study, judged.

    Attributes:
        pair: traded pair.
        run: what was tried.
        key: hash of everything the result depends on, the data included.
        validation: accounts on the validation split, to choose by without looking at the test.
        test: accounts on the test split.
        book_sources: distinct sources of the test bars' books: observed, modelled.
    """

    pair: str
    run: StudyRun
    key: str
    validation: SplitResult
    test: SplitResult
    book_sources: tuple[str, ...]

    @property
    def settings(self) -> Settings:
        """What it was trained and judged under."""
        return self.run.settings

    @property
    def hindsight(self) -> bool:
        """True where the policy's decoder reads the horizon's future."""
        return self.settings.codebook.hindsight

    def performance(self, account: str | None = None) -> Performance:
        """The six metrics on the test split, of the run's own account unless another is named."""
        return self._metrics(self.test, account)

    def validation_performance(self, account: str | None = None) -> Performance:
        """The six metrics on the validation split."""
        return self._metrics(self.validation, account)

    def as_dict(self) -> JsonDict:
        """Facts and metrics by name, ready for JSON."""
        return {
            "pair": self.pair,
            "seed": self.settings.seed,
            "settings_hash": self.settings.content_hash,
            "key": self.key,
            "hindsight": self.hindsight,
            "book_sources": list(self.book_sources),
            "account": self.run.account,
            "initial_capital": float(self.test.accounts[self.run.account].net_value[0]),
            "trades": self.test.accounts[self.run.account].trades,
            "validation": self.validation_performance().as_dict(),
            **self.performance().as_dict(),
        }

    def _metrics(self, split: SplitResult, account: str | None) -> Performance:
        path = split.accounts[account or self.run.account].net_value
        return performance(path, periods_per_year=self.settings.market.bars_per_year)
