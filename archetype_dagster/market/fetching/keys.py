"""The key an archive asks for: read from the environment at the moment it is sent, and kept nowhere."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Final
from urllib.parse import urlsplit

from requests import PreparedRequest
from requests.auth import AuthBase

from archetype_dagster.errors import SettingsError

TARDIS_KEY_VARIABLE: Final = "TARDIS_API_KEY"


class ArchiveKey(AuthBase):
    """A bearer token named by an environment variable.

    Being given for every request, it also keeps credentials of a `.netrc` file from being sent.

    Args:
        variable: name of the environment variable; None for an archive that asks for no key.
    """

    def __init__(self, variable: str | None = None) -> None:
        self.variable = variable

    @property
    def given(self) -> bool:
        """True where the variable holds a key."""
        return bool(self._value())

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Put the key into a request; without a key the request goes out as it is.

        Raises:
            SettingsError: the variable holds what no header can, or the key would travel unencrypted
                to another machine. The message never holds the key.
        """
        value = self._value()
        if value:
            if not re.fullmatch(r"[\x21-\x7e]+", value):
                raise SettingsError(f"{self.variable} holds spaces or control characters, which no key has")
            parts = urlsplit(str(request.url))
            if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
                raise SettingsError(f"{self.variable} is sent over https only, got {parts.scheme}://{parts.hostname}")
            request.headers["Authorization"] = f"Bearer {value}"
        return request

    def redact(self, text: str) -> str:
        """The text without the key, should a server have echoed it."""
        value = self._value()
        return text.replace(value, "***") if value else text

    def _value(self) -> str:
        return os.environ.get(self.variable, "").strip() if self.variable else ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
