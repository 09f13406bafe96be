"""Brax's PPO on an environment of MuJoCo Playground, one epoch of its program at a time, to compare with."""

from __future__ import annotations

import functools
import threading
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.harness import Figures, RunFailedError

UPDATES = 4  # of an epoch, which is one call of its program
MAX_EPOCHS = 10**6  # epochs: it is left waiting for more
EPOCH_TIMEOUT = 600.0  # seconds
HIDDEN = (64, 64)  # as those of the default network


class BraxPPO:
    """Brax's `train`, in a thread that waits between two epochs."""

    def __init__(self, env_id: str, env_kwargs: dict[str, Any], task: SimpleNamespace, rate: float) -> None:
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._steps = task.num_envs * task.unroll_length
        arguments = (env_id, env_kwargs, task, rate)
        threading.Thread(target=self._train, args=arguments, name="Brax's PPO", daemon=True).start()
        self._wait()

    def run(self, updates: int) -> Figures:
        """Make at least so many updates. Raises RunFailedError."""
        epochs = -(-updates // UPDATES)
        started = time.perf_counter()
        for _ in range(epochs):
            self._go.release()
            self._wait()
        return {"update": (time.perf_counter() - started) / epochs / UPDATES}

    def _wait(self) -> None:
        if not self._waits.acquire(timeout=EPOCH_TIMEOUT):
            raise RunFailedError(f"Brax's PPO hadn't ended an epoch after {EPOCH_TIMEOUT:g} s")
        if self._error is not None:
            raise RunFailedError(f"Brax's PPO failed: {self._error!r}") from self._error

    def _train(self, env_id: str, env_kwargs: dict[str, Any], task: SimpleNamespace, rate: float) -> None:
        try:
            self._train_in_epochs(env_id, env_kwargs, task, rate)
        except BaseException as error:  # which `run` raises
            self._error = error
            self._waits.release()

    def _train_in_epochs(self, env_id: str, env_kwargs: dict[str, Any], task: SimpleNamespace, rate: float) -> None:
        from brax.training.agents.ppo import networks, train
        from flax import linen
        from mujoco_playground import registry, wrapper

        if not hasattr(jax, "device_put_replicated"):  # which JAX 0.10 removed, and Brax 0.14.2 calls
            jax.device_put_replicated = replicated
        config = registry.get_default_config(env_id)
        minibatches = self._steps // task.minibatch_size

        def pause(*_: Any) -> None:
            self._waits.release()
            self._go.acquire()  # for ever, once all is measured: this thread ends with the process

        train.train(
            registry.load(env_id, **env_kwargs),
            wrap_env_fn=wrapper.wrap_for_brax_training,
            num_timesteps=self._steps * UPDATES * MAX_EPOCHS,
            num_evals=MAX_EPOCHS + 1,
            run_evals=False,
            episode_length=int(config.episode_length),
            num_envs=task.num_envs,
            unroll_length=task.unroll_length,
            batch_size=task.num_envs // minibatches,
            num_minibatches=minibatches,
            num_updates_per_batch=task.epochs,
            learning_rate=rate,
            max_grad_norm=0.5,
            discounting=0.99,
            network_factory=functools.partial(
                networks.make_ppo_networks,
                policy_hidden_layer_sizes=HIDDEN,
                value_hidden_layer_sizes=HIDDEN,
                activation=linen.tanh,
            ),
            policy_params_fn=pause,
        )


def replicated(tree: Any, devices: list[Any]) -> Any:
    """Return a copy of arrays for each device, along a new first axis."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * len(devices)), tree)
