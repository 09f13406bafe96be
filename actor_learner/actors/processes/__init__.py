"""Actors in processes of their own: their start, supervision, replacement and end."""
