"""Memory-v0: the environment that needs a memory."""

from __future__ import annotations

import numpy as np
import pytest
from actor_learner_envs.memory import MemoryEnv
from hypothesis import given, settings, strategies as st

CUES, DELAYS = st.integers(2, 6), st.integers(0, 6)


def env_with_cue(cue, **kwargs):
    env = MemoryEnv(**kwargs)
    env.reset(seed=0)
    while True:
        observation, _ = env.reset()
        if observation.argmax() == cue:
            return env, observation


def play(env, actions):
    """Observations after the first, rewards, and the last step's flags and info."""
    steps = [env.step(np.int64(action)) for action in actions]
    assert not any(terminated or truncated for _, _, terminated, truncated, _ in steps[:-1])
    return np.stack([step[0] for step in steps]), [step[1] for step in steps], steps[-1][2:]


@settings(max_examples=30)
@given(cues=CUES, delay=DELAYS, data=st.data())
def test_nothing_tells_the_cue_after_the_first_step(cues, delay, data):
    """The same observations whatever the cue and the actions: so a policy without a memory answers the same."""
    seen = []
    for cue in range(cues):
        env, first = env_with_cue(cue, cues=cues, delay=delay)
        assert first.tolist() == np.eye(cues + 1)[cue].tolist()
        actions = data.draw(st.lists(st.integers(0, cues - 1), min_size=delay + 2, max_size=delay + 2))
        seen.append(play(env, actions)[0])
    np.testing.assert_array_equal(seen, np.broadcast_to(seen[0], np.shape(seen)))
    expected = np.zeros((delay + 2, cues + 1))
    expected[delay, cues] = 1.0
    np.testing.assert_array_equal(seen[0], expected)


@settings(max_examples=30)
@given(cues=CUES, delay=DELAYS, data=st.data())
def test_reward_is_for_the_right_answer_to_the_question(cues, delay, data):
    cue, answer = data.draw(st.integers(0, cues - 1)), data.draw(st.integers(0, cues - 1))
    before = data.draw(st.lists(st.integers(0, cues - 1), min_size=delay + 1, max_size=delay + 1))
    env, _ = env_with_cue(cue, cues=cues, delay=delay)
    _, rewards, last = play(env, [*before, answer])
    assert rewards == [0.0] * (delay + 1) + [float(answer == cue)]
    assert last == (True, False, {"is_success": answer == cue})


@pytest.mark.parametrize(
    ("kwargs", "received"),
    [({"cues": 1}, "cues=1"), ({"delay": -1}, "delay=-1"), ({"render_mode": "human"}, "render_mode='human'")],
)
def test_refused_arguments(kwargs, received):
    with pytest.raises(ValueError, match=f"Received: {received}$"):
        MemoryEnv(**kwargs)
