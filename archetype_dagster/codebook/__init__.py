"""Phase I: a codebook of archetypes that turn the states of a horizon into actions."""

from archetype_dagster.codebook.decoder import ArchetypeDecoder
from archetype_dagster.codebook.decoding import decode_actions, decode_step
from archetype_dagster.codebook.encoder import TrajectoryEncoder
from archetype_dagster.codebook.initialisation import initial_codes
from archetype_dagster.codebook.model import Codebook
from archetype_dagster.codebook.quantizer import CodeUsage, VectorQuantizer, code_usage
from archetype_dagster.codebook.training import train_codebook

__all__ = [
    "ArchetypeDecoder",
    "CodeUsage",
    "Codebook",
    "TrajectoryEncoder",
    "VectorQuantizer",
    "code_usage",
    "decode_actions",
    "decode_step",
    "initial_codes",
    "train_codebook",
]
