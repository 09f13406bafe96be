"""What a name was meant to be: the one that is spelled much alike, or what other libraries call it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

ELSEWHERE = {
    # Stable-Baselines3
    "n_epochs": "epochs",
    "batch_size": "minibatch_size",
    "n_steps": "unroll_length",
    "n_envs": "envs_per_actor",
    "total_timesteps": "total_steps",
    "ortho_init": "orthogonal_init",
    "log_std_init": "initial_log_std",
    "net_arch": "hidden_sizes",
    "activation_fn": "activation",
    "sde_sample_freq": "noise_hold",
    # CleanRL
    "env_id": "env",
    "num_envs": "envs_per_actor",
    "num_steps": "unroll_length",
    "num_minibatches": "minibatch_size",
    "update_epochs": "epochs",
    "clip_coef": "clip_range",
    "clip_vloss": "clip_range_vf",
    "norm_adv": "normalize_advantage",
    "anneal_lr": "learning_rate",
    # Sample Factory
    "num_workers": "num_actors",
    "num_envs_per_worker": "envs_per_actor",
    "rollout": "unroll_length",
    "num_epochs": "epochs",
    "normalize_input": "normalize_observation",
    "normalize_returns": "normalize_reward",
    "exploration_loss_coeff": "ent_coef",
    "value_loss_coeff": "vf_coef",
    "ppo_clip_ratio": "clip_range",
    "train_for_env_steps": "total_steps",
    "train_dir": "run_dir",
    # TF-Agents
    "importance_ratio_clipping": "clip_range",
    "lambda_value": "gae_lambda",
    "discount_factor": "gamma",
    "entropy_regularization": "ent_coef",
    "value_pred_loss_coef": "vf_coef",
    "gradient_clipping": "max_grad_norm",
    # Keras
    "lr": "learning_rate",
    "clipnorm": "max_grad_norm",
    "global_clipnorm": "max_grad_norm",
}
"""Another library's name -> the field that means the same, or what it is to be worked out from."""


def close_match(word: str, words: Iterable[str]) -> str:
    """` (did you mean 'x'?)` where a known word, a field or a flag, is close or means the same; else nothing."""
    words = {name.lstrip("-"): name for name in words}  # dashes would make all flags a little alike
    meant = ELSEWHERE.get(word.lstrip("-").replace("-", "_"), "")
    same = [name for name in (meant, meant.replace("_", "-")) if name in words]
    matches = same or difflib.get_close_matches(word.lstrip("-"), words, n=1)
    return f" (did you mean {words[matches[0]]!r}?)" if matches else ""


class NamedFields:
    """A base of dataclasses: fields are given by name, and a name that there isn't is answered in a line."""

    WHOSE: ClassVar[str]
    """What messages call the fields of the classes derived from this one."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Raises TypeError, as Python does, but says what was meant."""
        parameters = _parameters(cls.__init__)
        if values and all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters):
            raise TypeError(
                f"{cls.__name__} takes its fields by name, as in {cls.__name__}({_fields(cls)[0]}=...). "
                f"Received: {', '.join(map(repr, values))}"
            )
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            for name in [name for name in named if name not in {parameter.name for parameter in parameters}]:
                raise TypeError(
                    f"{cls.__name__} has no such field{_meant(cls, name)}. Received: {name}={named[name]!r}"
                )
        return super().__new__(cls)


@functools.cache
def _parameters(method: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(method).parameters.values())[1:]


def _meant(cls: type[NamedFields], name: str) -> str:
    """A field of this class, or of those that it stands beside."""
    meant = ELSEWHERE.get(name, name)
    for family in NamedFields.__subclasses__():
        if not issubclass(cls, family) and any(meant in _fields(one) for one in (family, *family.__subclasses__())):
            return f" (did you mean {meant!r} of {family.WHOSE}?)"
    return close_match(name, _fields(cls))


def _fields(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init]
