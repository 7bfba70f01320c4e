"""Fetches numbers from platforms."""
