"""The numbers of columns that the distribution of one leaf takes."""

from __future__ import annotations

from typing import NamedTuple


class Columns(NamedTuple):
    """Numbers of columns of `parameters`, of a mask, and of the noise: uniforms in (0, 1] or standard normals."""

    parameters: int
    mask: int = 0
    uniform: int = 0
    normal: int = 0
