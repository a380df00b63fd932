"""Whether a downloaded file is the one the archive publishes, or at least whole."""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from pathlib import Path
from typing import Final

from archetype_dagster.artifacts import file_hash

_CHECKSUM_LINE: Final = re.compile(r"(?P<digest>[0-9a-fA-F]{64})\s+\*?(?P<name>\S+)\s*")
_CHUNK_BYTES: Final = 1 << 20


def parse_checksum(text: bytes, name: str) -> str | None:
    """The SHA-256 in a CHECKSUM file of the form `<hex digits>  <file name>`.

    Returns:
        The digest in lower case, or None where the text has another form or is for another file than `name`.
    """
    match = _CHECKSUM_LINE.fullmatch(text.decode("ascii", errors="replace"))
    return match["digest"].lower() if match and match["name"] == name else None


def file_fault(path: Path, name: str, digest: str | None) -> str | None:
    """What is wrong with a downloaded file, in words; None where it is right.

    Args:
        path: the file.
        name: the name it will have; its suffix says how it is packed.
        digest: SHA-256 it must have. Without one, the checksums inside the zip or gzip stand in for it:
            a body that was cut or changed on its way is found, a wrong file is not.
    """
    if digest is not None:
        found = file_hash(path)
        return None if found == digest else f"its SHA-256 is {found}, the archive's CHECKSUM says {digest}"
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            return None if damaged is None else f"its member {damaged} is damaged"
        with gzip.open(path) as stream:
            while stream.read(_CHUNK_BYTES):
                pass
    except (zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, RuntimeError) as error:
        return f"it cannot be unpacked ({error})"
    return None
