"""Mixins that make a class a consumer, and their policies."""
