"""A two-joint arm in MuJoCo whose masses, drawn anew for each episode, the value knows and the policy doesn't.

ONNX Runtime then runs the policy. Needs the extras [mujoco] and [onnx], and onnxruntime.

    python examples/hidden_masses.py [TOTAL_STEPS]
"""

import sys

import gymnasium as gym
import mujoco
import numpy as np
import onnxruntime

import actor_learner as al

ARM = """<mujoco>
  <option timestep="0.02"/>
  <worldbody><body pos="0 0 1">
    <joint name="shoulder" axis="0 1 0" damping="1"/><geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.05" mass="1"/>
    <body pos="0.5 0 0"><joint name="elbow" axis="0 1 0" damping="1"/>
      <geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.05" mass="1"/></body></body></worldbody>
  <actuator><motor joint="shoulder" gear="30"/><motor joint="elbow" gear="10"/></actuator>
</mujoco>"""


class Arm(gym.Env):
    """Lifts itself; the reward is its potential energy in joules, above the ground, which is 1 m below the shoulder."""

    observation_space = gym.spaces.Dict(
        joints=gym.spaces.Box(-np.inf, np.inf, (6,)),  # cosine and sine of the angles, and their speeds
        masses=gym.spaces.Box(0, 4, (2,)),
    )
    action_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(ARM)
        self.data, self.inertia = mujoco.MjData(self.model), self.model.body_inertia.copy()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.model.body_mass[1:] = self.np_random.uniform(0.3, 3, 2)  # in place of 1 kg; body 0 is the world
        self.model.body_inertia[:] = self.inertia * self.model.body_mass[:, None]
        mujoco.mj_setConst(self.model, self.data)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.steps = self.np_random.uniform(-np.pi, np.pi, 2), 0
        return self.observed(), {}

    def step(self, action):
        self.data.ctrl[:], self.steps = action, self.steps + 1
        mujoco.mj_step(self.model, self.data)
        energy = 9.81 * self.model.body_mass @ self.data.xipos[:, 2]  # of the centres of mass
        return self.observed(), float(energy), False, self.steps == 100, {}

    def observed(self):
        angles, speeds = self.data.qpos, self.data.qvel
        joints, masses = [*np.cos(angles), *np.sin(angles), *speeds], self.model.body_mass[1:]
        return {"joints": np.float32(joints), "masses": np.float32(masses)}


def main(total_steps: int = 100_000) -> float:
    settings = {"num_envs": 16, "normalize_observation": True, "total_steps": total_steps}
    algorithm = al.PPO(minibatch_size=256, normalize_reward=True)
    run = al.train(al.TrainConfig(env=Arm, value_keys=("masses",), algorithm=algorithm, **settings))
    folder = al.export(run.run_dir, run.run_dir / "onnx", format="onnx")
    session, env, total = onnxruntime.InferenceSession(folder / "policy.onnx"), Arm(), 0.0
    names = {one.name: one.name.removeprefix("observation.") for one in session.get_inputs()}  # the joints alone
    for seed in range(20):
        observation, truncated = env.reset(seed=seed)[0], False
        while not truncated:
            feed = {name: observation[key][None] for name, key in names.items()}
            observation, reward, _, truncated, _ = env.step(session.run(["action"], feed)[0][0])
            total += reward / 20
    return total


if __name__ == "__main__":
    print(f"mean return of the ONNX policy: {main(*map(int, sys.argv[1:])):.1f}")
