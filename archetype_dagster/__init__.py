"""ArchetypeTrader as a graph of assets: see the README for the tour."""

import os

# Idle threads sleep instead of spinning, or two runs on one machine starve each other; read once, when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
