"""Thin Dagster assets over the domain library, one module a group of stages, and their checks."""
