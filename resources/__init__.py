"""Dagster resources: settings, storage, compute device, tracking and progress."""
