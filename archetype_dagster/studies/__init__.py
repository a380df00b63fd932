"""Training again under other settings, with unchanged stages shared: seeds, ablations, walk-forward, sensitivities."""
