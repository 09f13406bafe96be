// CartPole-v1 and a policy exported with `actor-learner export RUN_DIR --format onnx`.
import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";

ort.env.wasm.numThreads = 1; // more threads need a page that is isolated from other origins

const MAX_STEPS = 500;
const MAX_POSITION = 2.4; // metres from the middle
const MAX_ANGLE = (12 * 2 * Math.PI) / 360; // radians from upright

// A function from an observation to the policy's most probable action.
export async function loadPolicy(url) {
  const session = await ort.InferenceSession.create(url);
  return async (observation) => {
    const input = new ort.Tensor("float32", Float32Array.from(observation), [1, 4]);
    const { action } = await session.run({ observation: input }, ["action"]);
    return Number(action.data[0]); // an int64, which is a BigInt here
  };
}

export function reset() {
  return Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05);
}

// Equations of Florian, "Correct equations for the dynamics of the cart-pole system"
// (https://coneural.org/florian/papers/05_cart_pole.pdf), without friction, in Euler steps, as in Gymnasium:
// https://github.com/Farama-Foundation/Gymnasium/blob/main/gymnasium/envs/classic_control/cartpole.py
export function step([x, xDot, theta, thetaDot], action) {
  const gravity = 9.8, cart = 1.0, pole = 0.1, halfLength = 0.5, seconds = 0.02;
  const force = action === 1 ? 10.0 : -10.0;
  const [cos, sin, total] = [Math.cos(theta), Math.sin(theta), cart + pole];
  const temp = (force + pole * halfLength * thetaDot ** 2 * sin) / total;
  const thetaAcc = (gravity * sin - cos * temp) / (halfLength * (4 / 3 - (pole * cos ** 2) / total));
  const xAcc = temp - (pole * halfLength * thetaAcc * cos) / total;
  return [x + seconds * xDot, xDot + seconds * xAcc, theta + seconds * thetaDot, thetaDot + seconds * thetaAcc];
}

export function hasFallen([x, , theta]) {
  return Math.abs(x) > MAX_POSITION || Math.abs(theta) > MAX_ANGLE;
}

// Plays an episode. `show(state, steps)` is awaited before each action.
export async function play(act, show = () => {}, state = reset()) {
  const observations = [], actions = [];
  while (actions.length < MAX_STEPS && !hasFallen(state)) {
    await show(state, actions.length);
    observations.push(Array.from(Float32Array.from(state)));
    actions.push(await act(state));
    state = step(state, actions.at(-1));
  }
  return { observations, actions, terminated: hasFallen(state), state };
}

export function draw(context, [x, , theta]) {
  const { width, height } = context.canvas;
  const scale = width / (2 * MAX_POSITION), ground = 0.75 * height, middle = width / 2 + x * scale;
  context.clearRect(0, 0, width, height);
  context.fillStyle = "#333";
  context.fillRect(0, ground, width, 1);
  context.fillRect(middle - 25, ground - 15, 50, 30);
  context.strokeStyle = "#c93";
  context.lineWidth = 10;
  context.beginPath();
  context.moveTo(middle, ground - 15);
  context.lineTo(middle + scale * Math.sin(theta), ground - 15 - scale * Math.cos(theta)); // 1 m long
  context.stroke();
}
