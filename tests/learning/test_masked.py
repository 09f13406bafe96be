"""An environment that needs its masks is learned with them, but not without."""

from __future__ import annotations

import pytest

import actor_learner as al

pytestmark = pytest.mark.thorough


MARGIN = 0.8
"""The required difference; returns are between -1 and 0.88."""


def test_masks_make_the_difference(tmp_path):
    returns = {}
    for mask_in in ("info", None):
        config = al.preset(
            "actor_learner/MaskedTreasure-v0",
            env_kwargs={"mask_in": mask_in},
            total_steps=25_000,
            max_policy_lag=2,
            run_dir=tmp_path / f"{mask_in}",
            quiet=True,
        )
        returns[mask_in] = al.evaluate(al.train(config).run_dir, episodes=20, seed=1, deterministic=False).mean
    assert returns["info"] > returns[None] + MARGIN
