"""Fields and arguments: the checks of their values, and suggestions for names that don't exist.

Each check returns the value in its final form, or raises ValueError: "`name` must be ... Received: name=value".
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import numbers
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, ClassVar, Self

MEMORIES = ("lstm", "gru", "attention")
HEADS = 4  # of attention
HINDSIGHT = ("future", "final", "episode")

REMOVED: dict[tuple[str, str], str] = {
    ("acting", "auto"): "'actors' or 'device' (`actor-learner benchmark ENV --compare-devices cpu gpu` compares them)",
    ("precision", "float16"): "'bfloat16' or 'float32'",
    ("vectorization", "threads"): "more actors (num_actors), which wait at the same time",
}
"""(field, value that an earlier version took) -> what replaces it, to follow the word "use"."""


def refusal(name: str, expected: str, value: object) -> ValueError:
    """Return the error for a value that an argument can't take."""
    text = repr(value)
    if isinstance(value, int) and len(text) > 24:
        text = f"{text[:20]}..."
    return ValueError(f"`{name}` must be {expected}. Received: {name}={text}")


def removed(name: str, value: object) -> str:
    """Return the refusal of a value that an earlier version took; "" for any other value."""
    instead = REMOVED.get((name, value)) if isinstance(value, str) else None
    return f"`{name}` can't be {value!r} any more: use {instead}. Received: {name}={value!r}" if instead else ""


def misfit(function: Any, *arguments: Any, **keywords: Any) -> TypeError | None:
    """Return the error of a call with these arguments, without calling; None if they fit, or nobody can tell.

    Functions in C may have no signature. What can't be called takes no arguments.
    """
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        return error
    except ValueError:
        return None
    return None


def check_count(
    name: str, value: Any, least: int | None = 1, *, most: int | None = None, optional: bool = False
) -> Any:
    """Return an integer of at least `least` (NumPy's too) as Python's; None passes if it is optional."""
    if value is None and optional:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise refusal(name, f"an integer{bound}{', or None' if optional else ''}", value)
    if most is not None and number > most:
        raise refusal(name, f"at most {most}", number)
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return a bool; 0 and 1 are refused."""
    if not isinstance(value, bool):
        raise refusal(name, "True or False", value)
    return value


def check_heads(name: str, size: int, heads: int = HEADS) -> None:
    """Check the columns that heads of attention share."""
    if size % heads:
        raise refusal(name, f"a multiple of the {heads} heads of attention", size)


def check_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    optional: bool = False,
    kind: str = "a finite number",
) -> Any:
    """Return a finite number within bounds (NumPy's too) as a float; None passes if it is optional."""
    if value is None and optional:
        return None
    number = _as_float(value)
    too_small = (least is not None and number < least) or (above is not None and number <= above)
    if not math.isfinite(number) or too_small or (most is not None and number > most):
        raise refusal(name, f"{_expected(kind, least, above, most)}{', or None' if optional else ''}", value)
    return number


def check_clip_reward(clip: Any) -> str | float | None:
    """Return how rewards are clipped: "sign", a bound above 0, or None."""
    if clip is None or (isinstance(clip, str) and clip == "sign"):
        return clip
    if isinstance(clip, str):
        raise refusal("clip_reward", "None, 'sign' or a bound above 0", clip)
    bound: float = check_number("clip_reward", clip, above=0, kind="None, 'sign' or a bound")
    return bound


def check_seconds(name: str, value: Any) -> float:
    return float(check_number(name, value, above=0, kind="a number of seconds"))


def check_choice(name: str, value: Any, choices: Collection[Any]) -> Any:
    if value not in choices:
        if text := removed(name, value):
            raise ValueError(text)
        hint = close_match(value, [choice for choice in choices if choice]) if isinstance(value, str) else ""
        raise refusal(name, f"one of {', '.join(map(repr, choices))}{hint}", value)
    return value


def _expected(kind: str, least: float | None, above: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f"a number between {least:g} and {most:g}"
    bounds = (("of at least", least), ("above", above), ("at most", most))
    parts = [f"{words} {bound:g}" for words, bound in bounds if bound is not None]
    return f"{kind} {' and '.join(parts)}".rstrip()


def _as_float(value: Any) -> float:
    """Return a number as a float: infinity for an integer larger than any float, NaN for any other type."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


_OTHER_NAMES = {
    "activation": "activation_fn",
    "clip_range": "clip_coef ppo_clip_ratio importance_ratio_clipping",
    "clip_range_vf": "clip_vloss",
    "ent_coef": "exploration_loss_coeff entropy_regularization",
    "env": "env_id",
    "envs_per_actor": "num_envs_per_worker",
    "epochs": "n_epochs update_epochs num_epochs",
    "gae_lambda": "lambda_value",
    "gamma": "discount_factor",
    "hindsight": "goal_selection_strategy",
    "hindsight_goals": "n_sampled_goal",
    "hidden_sizes": "net_arch policy_kwargs",
    "initial_log_std": "log_std_init",
    "learning_rate": "anneal_lr lr",
    "max_grad_norm": "gradient_clipping clipnorm global_clipnorm",
    "minibatch_size": "batch_size num_minibatches",
    "network": "policy",
    "noise_hold": "sde_sample_freq use_sde",
    "normalize_advantage": "norm_adv",
    "normalize_observation": "normalize normalize_input",
    "normalize_reward": "normalize_returns",
    "num_actors": "num_workers",
    "num_envs": "n_envs",
    "orthogonal_init": "ortho_init",
    "run_dir": "train_dir",
    "tensorboard": "tensorboard_log",
    "total_steps": "n_timesteps total_timesteps train_for_env_steps",
    "updates_per_step": "gradient_steps train_freq",
    "unroll_length": "n_steps num_steps rollout",
    "vf_coef": "value_loss_coeff value_pred_loss_coef",
    "wrappers": "env_wrapper wrapper_class",
}
"""Field -> the names that Stable-Baselines3, CleanRL, Sample Factory, TF-Agents and Keras give it, or its inputs."""

ELSEWHERE = {other: name for name, others in _OTHER_NAMES.items() for other in others.split()}
"""Another library's name -> the field that means the same, or that replaces it."""


def close_match(word: str, words: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known field or flag that is close or means the same, or an empty string."""
    words = {name.lstrip("-"): name for name in words}  # without dashes, which make all flags a little alike
    synonym = ELSEWHERE.get(word.lstrip("-").replace("-", "_"), "")
    same = [name for name in (synonym, synonym.replace("_", "-")) if name in words]
    matches = same or difflib.get_close_matches(word.lstrip("-"), words, n=1)
    return f" (did you mean {words[matches[0]]!r}?)" if matches else ""


class NamedFields:
    """A base of dataclasses whose fields are keywords; an unknown field raises a one-line error with a suggestion."""

    OWNER: ClassVar[str]
    """The owner of the fields, in messages: "did you mean 'epochs' of the algorithm?"."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        parameters = _parameters(cls.__init__)
        own = cls.__name__
        if values and all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters):
            received = ", ".join(map(repr, values))
            raise TypeError(f"{own} takes its fields by name, as in {own}({_fields(cls)[0]}=...). Received: {received}")
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            for name in [name for name in named if name not in {parameter.name for parameter in parameters}]:
                raise TypeError(f"{own} has no such field{_suggestion(cls, name)}. Received: {name}={named[name]!r}")
        return super().__new__(cls)


@functools.cache
def _parameters(method: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(method).parameters.values())[1:]


_FAMILIES = ("actor_learner.algorithms", "actor_learner.config.config")
"""The modules whose classes have named fields, imported for a suggestion: the caller may have imported only one."""


def _suggestion(cls: type[NamedFields], name: str) -> str:
    """Suggest a field of this class, or of another class with named fields."""
    for module in _FAMILIES:
        importlib.import_module(module)
    synonym = ELSEWHERE.get(name, name)
    for family in NamedFields.__subclasses__():
        if not issubclass(cls, family) and any(synonym in _fields(one) for one in _descendants(family)):
            return f" (did you mean {synonym!r} of {family.OWNER}?)"
    return close_match(name, _fields(cls))


def _descendants(cls: type[NamedFields]) -> Iterator[type[NamedFields]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _descendants(subclass)


def _fields(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init]
