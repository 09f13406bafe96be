"""Environments: looked up, made and stepped."""
