"""What every group of settings is, and the numbers that fields hold."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys.

    Attributes:
        locations: fields that the hash leaves out: where files lie, how they are fetched, what is tried beside the run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    locations: ClassVar[dict[str, Any]] = {}

    @property
    def content_hash(self) -> str:
        """SHA-256 of the canonical JSON of this section: equal settings, equal hash.

        Where source files lie and how they are fetched does not count; what is in them is hashed
        with the artifacts. Nor does a sweep's search: each of its trials has settings of its own.
        """
        values = self.model_dump(mode="json", exclude=self.locations)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
