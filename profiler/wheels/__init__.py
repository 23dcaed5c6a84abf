"""Wheels for a machine without a network: what recording lacks there."""
