"""Actors on several machines: hosts that Ray places, and which send columns over TCP connections of ours."""
