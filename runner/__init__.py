"""Placeholder docstring replaced by the owner."""
