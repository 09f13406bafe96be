"""Actors in processes of their own: started, watched, replaced and ended."""
