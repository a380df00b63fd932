"""Where a failure is told: the log, or a webhook whose address is a secret of the environment."""

import logging
import os
from typing import Final

import dagster as dg
import requests
from pydantic import Field

WEBHOOK_VARIABLE: Final = "ARCHETYPE_ALERT_WEBHOOK"

_log = logging.getLogger(__name__)


class AlertsResource(dg.ConfigurableResource["AlertsResource"]):
    """Sends one message a failure: to the log, and to a webhook where the environment names one.

    The address is read when a message is sent and appears in no configuration, log or error.
    """

    timeout_seconds: float = Field(default=10.0, gt=0, description="How long the webhook may take to answer.")

    def send(self, title: str, text: str, *, link: str | None = None) -> str:
        """Tell a failure; returns how that went, without the address.

        The webhook is posted JSON with the field `text`, as chat programs take it, and `title` and `link`.
        A webhook that cannot be reached is logged and raises nothing: an alert must not fail what it reports on.
        """
        address = os.environ.get(WEBHOOK_VARIABLE)
        message = f"{title}\n{text}" + (f"\n{link}" if link else "")
        _log.error(_without(address, message))
        if not address:
            return "logged"
        body = {"text": _without(address, message), "title": title, "link": link}
        try:
            answer = requests.post(address, json=body, timeout=self.timeout_seconds, allow_redirects=False)
        except requests.RequestException as error:
            # Its message holds the address.
            outcome = f"webhook not reached ({type(error).__name__})"
        else:
            # Redirects are not followed, so they are refusals too.
            outcome = "sent" if answer.status_code < 300 else f"webhook answered {answer.status_code}"
        if outcome != "sent":
            _log.warning("alert %s", outcome)
        return outcome


def _without(secret: str | None, text: str) -> str:
    return text.replace(secret, "***") if secret else text
