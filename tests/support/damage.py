"""Damage to files: they are cut off, or bits in them change."""

from __future__ import annotations

from hypothesis import strategies as st


def damaged(content):
    """A strategy: `content` cut off somewhere, or with one to three bits flipped."""
    cut = st.integers(0, len(content) - 1).map(lambda length: content[:length])
    bits = st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=3, unique=True)
    return cut | bits.map(lambda places: flipped(content, places))


def flipped(content, places):
    """Returns `content` with these bits flipped."""
    changed = bytearray(content)
    for place in places:
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)
