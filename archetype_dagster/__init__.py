"""ArchetypeTrader as a graph of assets: see the README for the tour."""
