"""Vendors' files are opened whatever their packing, and hostile ones are refused."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market import files
from archetype_dagster.market.files import UNPACKED_ALLOWANCE, DataFile, find_files

TEXT = b"a,b\n1,2\n3,4\n"


def _text(file: DataFile) -> bytes:
    return b"".join(file.blocks())


class _Dripping(io.BytesIO):
    """Gives a few bytes at a time, however many are asked for."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._most)


def _zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_plain_gzip_and_zip_give_the_same_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(TEXT)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(TEXT))
    _zip(tmp_path / "c.zip", {"c.csv": TEXT})
    assert [_text(file) for file in find_files(tmp_path)] == [TEXT] * 3


def test_packing_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "plain.csv.gz").write_bytes(TEXT)
    (tmp_path / "packed.csv").write_bytes(gzip.compress(TEXT))
    assert [_text(file) for file in find_files(tmp_path)] == [TEXT] * 2


@pytest.mark.parametrize("size", [1, 5, 9, 100])
def test_blocks_end_at_line_ends_whatever_their_size(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.csv").write_bytes(TEXT + b"5,6")
    blocks = list(find_files(tmp_path / "a.csv")[0].blocks(size))
    assert b"".join(blocks) == TEXT + b"5,6"
    assert all(block.endswith(b"\n") for block in blocks[:-1])


def test_a_folder_is_searched_to_the_bottom_without_hidden_and_foreign_files(tmp_path: Path) -> None:
    for name in ("x/y/b.csv", "a.csv", ".hidden.csv", "a.csv.CHECKSUM", "a.csv.gz.part"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(TEXT)
    assert [file.path.name for file in find_files(tmp_path)] == ["a.csv", "b.csv"]


def test_a_glob_chooses_files(tmp_path: Path) -> None:
    for name in ("d/a-1.csv", "d/a-2.csv", "d/b-1.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(TEXT)
    assert [file.path.name for file in find_files(tmp_path / "*" / "a-*.csv")] == ["a-1.csv", "a-2.csv"]


def test_every_text_of_an_archive_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = _zip(tmp_path / "c.zip", {"b.csv": b"2", "a.csv": b"1", "read.me": b"", "__MACOSX/a.csv": b"x"})
    assert [(file.member, _text(file)) for file in find_files(path)] == [("a.csv", b"1"), ("b.csv", b"2")]


@pytest.mark.parametrize("name", ["../evil.csv", "/etc/evil.csv", "x/../../evil.csv"])
def test_a_name_that_leads_out_of_its_archive_is_refused(tmp_path: Path, name: str) -> None:
    path = _zip(tmp_path / "c.zip", {name: TEXT})
    with pytest.raises(MarketDataError, match=r"c\.zip: a name inside an archive must not lead out of it"):
        find_files(path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_bytes(TEXT)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(MarketDataError, match="link must not lead out of"):
        find_files(tmp_path / "data")


def test_a_glob_that_climbs_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MarketDataError, match="must not climb up"):
        find_files(tmp_path / "*" / ".." / "x.csv")


@settings(max_examples=30, deadline=None)
@given(
    members=st.lists(st.tuples(st.binary(max_size=400), st.integers(0, 3)), min_size=1, max_size=4),
    sizes=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_gzip_members_and_padding_read_as_the_standard_library_reads_them(
    members: list[tuple[bytes, int]], sizes: tuple[int, int]
) -> None:
    packed = b"".join(gzip.compress(data) + bytes(padding) for data, padding in members)
    stream = files.Gunzip(_Dripping(packed, sizes[0]))
    unpacked = b"".join(iter(lambda: stream.read(sizes[1]), b""))
    assert unpacked == gzip.decompress(packed) == b"".join(data for data, _ in members)


@pytest.mark.parametrize("damage", [b"no gzip", b"\x1f\x8b"])
def test_what_follows_a_gzip_member_must_be_another_one(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(TEXT) + damage)
    with pytest.raises(MarketDataError, match=r"a\.csv\.gz: not a readable file"):
        _text(find_files(tmp_path / "a.csv.gz")[0])


@pytest.mark.parametrize("packed", ["gz", "zip"])
def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, packed: str) -> None:
    bomb = b"0\n" * (UNPACKED_ALLOWANCE // 2 + 10_000_000)
    path = tmp_path / f"bomb.{packed}"
    if packed == "gz":
        path.write_bytes(gzip.compress(bomb))
    else:
        _zip(path, {"bomb.csv": bomb})
    with pytest.raises(MarketDataError, match="must not unpack to more than 300 times"):
        for _ in find_files(path)[0].blocks():
            pass


@pytest.mark.parametrize("cut", [20, 40])
def test_a_truncated_gzip_is_refused_by_name(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(bytes(range(256)))[:cut])
    with pytest.raises(MarketDataError, match=r"a\.csv\.gz: not a readable file"):
        _text(find_files(tmp_path / "a.csv.gz")[0])


def test_a_damaged_zip_is_refused_by_name(tmp_path: Path) -> None:
    whole = _zip(tmp_path / "a.zip", {"a.csv": bytes(range(256)) * 9}).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:100])
    with pytest.raises(MarketDataError, match=r"cut\.zip: not a readable file"):
        find_files(tmp_path / "cut.zip")
    (tmp_path / "flipped.zip").write_bytes(whole.replace(whole[60:64], b"\xff\x00\xff\x00", 1))
    with pytest.raises(MarketDataError, match=r"flipped\.zip: not a readable file"):
        _text(find_files(tmp_path / "flipped.zip")[0])


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(MarketDataError, match=r"none\.csv: file does not exist"):
        find_files(tmp_path / "none.csv")
    with pytest.raises(MarketDataError, match=r"holds no \.csv, \.txt, \.gz, \.zip file"):
        find_files(tmp_path)
