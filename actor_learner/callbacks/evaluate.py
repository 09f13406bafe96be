"""Evaluation while training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from actor_learner.callbacks.base import Callback
from actor_learner.config.settings import check_wrappers
from actor_learner.environments.factory import resolve_env
from actor_learner.environments.self_play import Seats
from actor_learner.environments.video import check_recorded, recorded
from actor_learner.evaluate import MAX_ENVS, Evaluation, check_playable, evaluate, is_runs_own
from actor_learner.policy.policy import Policy
from actor_learner.system.fields import check_count


class Evaluate(Callback):
    """Plays episodes every `every_steps` env steps, and after the last update, with the current weights.

    The callback has its own environments and random numbers, and plays the same episodes each time. Training waits
    meanwhile. The metrics `evaluation/return_mean`, `evaluation/return_std` and `evaluation/length_mean` go to the
    update's row of metrics.jsonl, to its `logs` for every other callback, and to those of that epoch's end. So does the
    mean of each of the run's `info_keys` that episodes have, such as `evaluation/is_success`, with the ends of its 95%
    interval, `evaluation/is_success_low` and `_high`. An epoch without evaluation doesn't count for `EarlyStopping` and
    the like. With `SwapEMAWeights`, the averaged weights play.

    Args:
        every_steps: Env steps between two evaluations; while a run learns offline, gradient steps.
        env: As for `train`; by default the run's environment, in which the calls of `actors.call` are repeated, unless
            `env_kwargs` are given.
        episodes: Number of episodes in one evaluation.
        env_kwargs: Keyword arguments of the environment; by default those of the run, if the environment is the run's.
        seed: Seeds the environments, and the actions with `deterministic=False`.
        deterministic: Take the most probable action; otherwise sample.
        max_episode_steps: As for `evaluate`.
        video: Number of episodes that are recorded as well, in `videos/<env steps>` of the run's directory.
        name: Prefix of the metrics' names, to tell two such callbacks apart.
        wrappers: As for `train`; by default the run's, also around another environment; `()` for none.
        wrapper_kwargs: Keyword arguments of these wrappers; of the run's, those of one wrapper replace its own.
        opponent: As for `evaluate`, in games; by default the random player, with self-play.

    Raises:
        ValueError: an argument can't be used; or, when training begins, the environment.
        ImportError: when training begins: a video needs moviepy.
    """

    OF_ONE_POLICY = True

    def __init__(
        self,
        every_steps: int,
        env: str | Callable[..., Any] | None = None,
        episodes: int = 10,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
        deterministic: bool = True,
        max_episode_steps: int | None = None,
        video: int = 0,
        name: str = "evaluation",
        wrappers: Sequence[str | Callable[..., Any]] | None = None,
        wrapper_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        opponent: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(name, str) or not name:
            raise ValueError(f"`name` must be a string that isn't empty. Received: name={name!r}")
        self.every_steps, self.episodes = check_count("every_steps", every_steps), check_count("episodes", episodes)
        self.seed, self.video = check_count("seed", seed, 0), check_count("video", video, 0)
        self.max_episode_steps = check_count("max_episode_steps", max_episode_steps, optional=True)
        self.env, self.env_kwargs, self.deterministic, self.name = env, env_kwargs, deterministic, name
        self.opponent = opponent
        self.wrappers = None if wrappers is None else check_wrappers("wrappers", wrappers)
        self.wrapper_kwargs = wrapper_kwargs
        self.reports = _directions(self.reports)  # of a subclass
        self.return_metric = f"{name}/return_mean"
        self.evaluation: Evaluation | None = None
        """The newest result."""
        self.calls: Sequence[Any] = ()
        """The calls so far of the run's environments when it was played."""

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        better: dict[str, str | None] = {"return_mean": "max", "return_std": None, "length_mean": "max"}
        for key in self.config.info_keys:
            better |= {key: "max", f"{key}_low": None, f"{key}_high": None}
        found = {f"{self.name}/{figure}": direction for figure, direction in better.items()}
        self.reports = found | _directions(self.reports)

    @property
    def repeats_calls(self) -> bool:
        """Whether the environment is the run's own, so that the calls of `actors.call` are repeated in it."""
        return is_runs_own(self.config.env_arguments, self.env, self.env_kwargs)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Resolve the environment, and export the policy, of which evaluations replace only the weights."""
        arguments = self.config.env_arguments
        own, more = arguments["wrapper_kwargs"], self.wrapper_kwargs
        if self.wrappers is not None:
            arguments |= {"wrappers": self.wrappers, "wrapper_kwargs": more}
        elif more:
            own_too = own if isinstance(own, Mapping) else {}
            arguments["wrapper_kwargs"] = {**own_too, **more} if isinstance(more, Mapping) else more
        if not self.repeats_calls:
            arguments["env_kwargs"] = self.env_kwargs
        if self.env is not None:
            arguments["env"] = self.env
        factory = resolve_env(**arguments, check_pickle=False)
        if self.max_episode_steps is not None:
            factory = factory.limited(self.max_episode_steps)
        if (self_play := self.config.self_play) is not None:
            factory = dataclasses.replace(factory, seats=Seats.of(self_play))
        counts = self.config.env_counts  # the evaluation's own come after these, beside which they live
        self._factory = dataclasses.replace(factory, known_count=counts[0], first_env=sum(counts))
        if self.video:
            self._recorded()  # raises without the package
            check_recorded(self._factory)
        self._policy = Policy.from_network(
            self.actors.policy_network,
            self.actors.action_space,
            batch_size=min(MAX_ENVS, self.episodes),
            observation_space=self.actors.policy_space,
        )
        masked = self.actors.uses_masks
        self._policy.exported = dataclasses.replace(self._policy.exported, trained_with_masks=masked)
        check_playable(self._policy, self._factory, autoreset_mode=self.config.autoreset_mode)
        self._reached = self.learner.steps // self.every_steps

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        steps = self.learner.steps
        reached, self._reached = self._reached, steps // self.every_steps
        if self._reached > reached or steps >= self.config.all_steps:
            figures = _figures(self._evaluate())
            (logs if logs is not None else {}).update({f"{self.name}/{key}": value for key, value in figures.items()})

    def _evaluate(self) -> Evaluation:
        metrics: dict[str, float] = {}
        self.calls = self.actors.calls
        self.callbacks.call("on_test_begin", {})  # SwapEMAWeights puts the averages in, as in `Model.evaluate`
        try:
            self._policy.set_weights(self.actors.policy_network.get_weights())
            self.evaluation = self._play(self._factory, self.episodes, min(MAX_ENVS, self.episodes))
            metrics |= {"return_mean": self.evaluation.mean, "return_std": self.evaluation.std}
            if self.video:
                self._play(self._recorded(), self.video, num_envs=1)
        finally:
            self.callbacks.call("on_test_end", metrics)
        return self.evaluation

    def _play(self, env: Any, episodes: int, num_envs: int) -> Evaluation:
        return evaluate(
            self._policy,
            env,
            episodes=episodes,
            seed=self.seed,
            deterministic=self.deterministic,
            num_envs=num_envs,
            autoreset_mode=self.config.autoreset_mode,
            opponent=self.opponent,
            info_keys=self.config.info_keys,
            calls=self.calls if self.repeats_calls else False,
        )

    def _recorded(self) -> Any:
        folder = Path(self.run_dir) / "videos" / f"{self.learner.steps:010}"
        return recorded(self._factory, folder, self.video)


def _directions(reports: Collection[str]) -> dict[str, str | None]:
    return dict(reports) if isinstance(reports, Mapping) else dict.fromkeys(reports)


def _figures(evaluation: Evaluation) -> dict[str, float]:
    """Return the figures of an evaluation that have a value."""
    found = {"return_mean": evaluation.mean, "return_std": evaluation.std, "length_mean": evaluation.mean_length}
    for key, values in evaluation.info.items():
        low, high = evaluation.confidence_interval(key=key)
        found |= {key: float(values[~np.isnan(values)].mean()), f"{key}_low": low, f"{key}_high": high}
    return {name: value for name, value in found.items() if np.isfinite(value)}
