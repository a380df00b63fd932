"""Files that unpack to more than they look like, or nest without end, are refused before they fill the memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.files import UNPACKED_ALLOWANCE
from archetype_dagster.market.table_files import open_tables
from archetype_dagster.settings import load_settings

ETH = load_settings().pair("ETH")


def test_a_packed_json_bomb_is_refused(tmp_path: Path) -> None:
    bomb = b"[" + b" " * (UNPACKED_ALLOWANCE + 1) + b"[1, 2, 3, 4, 5, 6]]"
    file = tmp_path / "ETH.json.gz"
    file.write_bytes(gzip.compress(bomb, compresslevel=9))
    assert file.stat().st_size < UNPACKED_ALLOWANCE / 500
    with pytest.raises(MarketDataError, match=rf"at most {UNPACKED_ALLOWANCE} bytes"):
        open_tables(file, ETH)


def test_json_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ETH.json"
    file.write_text("[" * 100_000)
    with pytest.raises(MarketDataError, match="not a readable JSON file"):
        open_tables(file, ETH)


def test_an_honest_packed_table_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ETH.json.gz"
    rows = [[1_700_000_000_000 + 300_000 * row, 1.0, 2.0, 0.5, 1.5, 10.0] for row in range(100)]
    file.write_bytes(gzip.compress(json.dumps(rows).encode()))
    (table,) = open_tables(file, ETH)
    assert table.head.height == 100
