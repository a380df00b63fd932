"""Gymnasium environments on the shared cost tables."""
