"""Asking platforms for their numbers."""
