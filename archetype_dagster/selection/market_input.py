"""What the networks of Phases II and III read of the market: a bar's state, or a window of bars through a backbone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from archetype_dagster.policies import build_backbone
from archetype_dagster.policies.saved import without_pretraining
from archetype_dagster.settings.phases import check_backbone
from archetype_dagster.types import JsonDict


class MarketInput(nn.Module):
    """The state as it is, or what a backbone makes of the last L states; without a backbone it has no weights.

    Args:
        num_features: market features F.
        backbone: alias, see `policies.build_backbone`; None for the current bar alone.
        lookback_bars: L, the current bar included; 1 without a backbone.
        backbone_kwargs: the backbone's own arguments.
        output_dim: numbers D that a backbone gives.

    Attributes:
        lookback_bars: L.
        size: numbers that come out: F without a backbone, else D.
        facts: the arguments above that rebuild the same input, as JSON; empty without a backbone.

    Raises:
        SettingsError: a window without a backbone or the other way round, or what the backbone refuses.
    """

    def __init__(
        self,
        num_features: int,
        *,
        backbone: str | None,
        lookback_bars: int,
        backbone_kwargs: Mapping[str, Any] | None,
        output_dim: int,
    ) -> None:
        super().__init__()
        own = dict(backbone_kwargs or {})
        check_backbone(backbone, lookback_bars, own)
        self.lookback_bars = lookback_bars
        self.facts: JsonDict = {}
        self.size = num_features
        self.backbone: nn.Module = nn.Identity()
        if backbone is not None:
            self.size = output_dim
            self.backbone = build_backbone(
                backbone,
                input_features=num_features,
                sequence_length=lookback_bars,
                output_dim=output_dim,
                backbone_kwargs=own,
            )
            self.facts = {
                "backbone": backbone,
                "lookback_bars": lookback_bars,
                "backbone_kwargs": without_pretraining(own),
            }

    def forward(self, market: torch.Tensor) -> torch.Tensor:
        """float32 (..., F) as it is where L is 1; (..., L, F), oldest first, -> (..., D) otherwise."""
        if self.lookback_bars == 1:
            return market
        window = market.shape[-2:]
        features: torch.Tensor = self.backbone(market.reshape(-1, *window))
        return features.reshape(*market.shape[:-2], self.size)
