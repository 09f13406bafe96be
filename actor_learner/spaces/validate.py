"""The checks that a trajectory from any source passes before the learner uses it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from actor_learner.spaces.kinds import Box, MultiBinary
from actor_learner.spaces.leaves import check_array, check_choices, check_finite, check_leaf
from actor_learner.spaces.masks import MaskLayout
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY, Leaf, choice_counts, fits_32_bits
from actor_learner.spaces.trajectory import FIELDS, Trajectory, map_leaves
from actor_learner.system.types import Array

_KINDS = {"b": "biu", "f": "fiu", "i": "iu"}  # of dtypes that are taken for one
_HINT = ", as `reward` has [T, B]"

MAX_SHARE_AT_BOUNDS = 0.6
"""The share of a new policy's Box components on a bound above which its noise is too wide for the space."""

_FAR = 2.0  # standard deviations from the mean of actions beyond which bounds are out of their reach
_MAX_RANGE = 50.0  # standard deviations that half of the bounds' distance may be
_LOST = 4.0  # spacings of float32 that the standard deviation of an observation must be above
_MAX_NUMBERS = 4096  # of an observation's leaf that is no picture


def check_trajectory_type(trajectory: object) -> None:
    """Raise ValueError for anything but a trajectory."""
    if not isinstance(trajectory, Trajectory):
        raise ValueError(f"`trajectory` must be an actor_learner.Trajectory. Received: a {type(trajectory).__name__}")


def validate_trajectory(trajectory: Trajectory, spaces: Spaces) -> Trajectory:
    """Return a trajectory from any source with every field in its dtype; arrays that have it already aren't copied.

    Masks that the fields `action_mask` and `final_action_mask` lack are those of a Dict observation's entry
    `action_mask`.

    Raises ValueError, naming field or leaf, for a wrong structure, shape or kind, an observation, action or reward that
    is NaN or infinite in a valid row, an action outside its space or forbidden by its mask, a mask that allows nothing,
    or an invalid row within an episode: the update would broadcast or learn each silently. The update itself checks
    that log-probabilities and truncation values, which a network computes, are finite.
    """
    check_trajectory_type(trajectory)
    rows = np.shape(trajectory.reward)
    if len(rows) != 2 or 0 in rows:
        raise ValueError(f"`reward` must have shape [T, B], at least [1, 1]. Received: shape={rows}")
    given, optional = trajectory._asdict(), Trajectory._field_defaults
    checked: dict[str, Any] = {}
    for name, (_, dtype, of) in FIELDS.items():
        if not of and (given[name] is not None or name not in optional):
            kinds, shape = _KINDS[np.dtype(dtype).kind], FIELDS[name].axes(*rows)
            checked[name] = check_array(name, given[name], shape, kinds, dtype, hint=_HINT)
    valid = checked["valid"]
    check_finite("reward", checked["reward"], valid)
    _check_ends(checked["terminated"] | checked["truncated"], valid)
    if "env_index" in checked and (index := checked["env_index"].min()) < 0:
        raise ValueError(f"`env_index` must be at least 0. Received: {index}")
    if trajectory.initial_state is not None:
        checked["initial_state"] = _initial_state(trajectory.initial_state, rows[1], checked.get("start"))
    final_row = checked.get("final_row")
    if (final_row is None) != (trajectory.final_observation is None):
        missing = "final_row" if final_row is None else "final_observation"
        raise ValueError(f"`final_observation` and `final_row` must be given together. Received: {missing}=None")
    used = np.concatenate([valid, np.ones_like(valid[:1])])
    if final_row is not None:
        for wrong in final_row[(final_row < -1) | (final_row >= rows[0])]:
            raise ValueError(f"`final_row` must be -1 or a row, below {rows[0]}. Received: {wrong}")
        others = np.arange(rows[0])[:, None] != final_row  # whose episodes' last observations are in the next row
        used[1:] |= checked["truncated"] & others
    elif "start" in checked:
        used[1:] |= checked["truncated"] & ~checked["start"][1:]
    observation = _observation(trajectory.observation, rows, used)
    if spaces.observation_space is not None:
        if spaces.observation.plain and isinstance(observation, dict | tuple):
            raise ValueError(f"`observation` must be an array. Received: a {type(observation).__name__}")
        for leaf, values in zip(spaces.observation.leaves, spaces.observation.flatten(observation), strict=True):
            if choice_counts(leaf.space) and values.shape[2:] == leaf.shape:
                check_choices(leaf, values, used)
    if final_row is not None:
        given = trajectory.final_observation
        ended = checked["terminated"] | checked["truncated"]
        checked["final_observation"] = _final_observation(given, observation, ended, final_row)
    leaves = zip(spaces.action.leaves, spaces.action.flatten(trajectory.action), strict=True)
    actions = [
        check_leaf(leaf, given, rows, kinds=_action_kinds(leaf), used=valid, hint=_HINT) for leaf, given in leaves
    ]
    trajectory = trajectory._replace(**checked, observation=observation, action=spaces.action.unflatten(actions))
    mask, final_mask = _masks(trajectory, used, spaces.masks)
    if mask is not None:
        _check_allowed(mask[:-1], spaces, actions, valid)
    return trajectory._replace(action_mask=mask, final_action_mask=final_mask)


def _observation(given: Any, rows: tuple[int, ...], used: Array) -> Any:
    """Check a nest of arrays. A Learner has no observation space: it takes the nesting of the first batch."""

    def leaf(label: str, given: Any) -> Array:
        values = check_array(label, given, (rows[0] + 1, rows[1], ...), "fiub", hint=_HINT)
        check_finite(label, values, used)
        return values.astype(np.float32) if values.dtype == np.float64 or not fits_32_bits(values) else values

    return _map_labelled(leaf, "observation", given)


def _initial_state(given: Any, columns: int, start: Array | None) -> tuple[Array, ...]:
    """Check the leaves of a network's state, which must be finite where a column goes on from it."""
    if not isinstance(given, (tuple, list)):
        raise ValueError(f"`initial_state` must be a tuple of arrays [B, ...]. Received: a {type(given).__name__}")
    state = tuple(check_array("initial_state", leaf, (columns, ...), "fiub", np.float32, hint=_HINT) for leaf in given)
    for leaf in state:
        lost = ~np.isfinite(leaf).reshape(columns, -1).all(axis=1)
        if start is not None:
            lost &= ~start[0]
        if lost.any():
            column = int(lost.argmax())
            raise ValueError(
                "`initial_state` must be finite where no episode starts. "
                f"Received: {leaf[column][~np.isfinite(leaf[column])][0]} in column {column}"
            )
    return state


def _final_observation(given: Any, observation: Any, ended: Array, row: Array) -> Any:
    """Check the last observations of the episodes that row `row` of each column ends."""
    rows = map_leaves(lambda leaf: leaf[0], observation)
    final = _map_pairs("final_observation", given, rows)
    used = (row >= 0) & ended[row, np.arange(row.size)]
    _map_labelled(lambda label, leaf: check_finite(label, leaf[None], used[None]), "final_observation", final)
    return final


def _map_pairs(label: str, given: Any, like: Any) -> Any:
    """Return a nest of arrays in the dtypes of `like`, after a check of structure and shapes."""
    if isinstance(like, dict) and isinstance(given, dict) and given.keys() == like.keys():
        return {key: _map_pairs(f"{label}[{key!r}]", given[key], part) for key, part in like.items()}
    if isinstance(like, tuple) and isinstance(given, tuple) and len(given) == len(like):
        return tuple(_map_pairs(f"{label}[{index}]", given[index], part) for index, part in enumerate(like))
    if isinstance(like, dict | tuple) or isinstance(given, dict | tuple) or np.shape(given) != like.shape:
        received = type(given).__name__ if isinstance(given, dict | tuple) else np.shape(given)
        raise ValueError(f"`{label}` must be like a row of `observation`, [B, ...]. Received: {received}")
    return np.asarray(given).astype(like.dtype, copy=False)


def _map_labelled(function: Callable[[str, Any], Any], label: str, value: Any) -> Any:
    """Apply `function` to label and value of each leaf of a nest of dicts and tuples."""
    if isinstance(value, dict):
        return {key: _map_labelled(function, f"{label}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_map_labelled(function, f"{label}[{index}]", item) for index, item in enumerate(value))
    return function(label, value)


def _action_kinds(leaf: Leaf) -> str:
    return _KINDS[leaf.dtype.kind] + ("b" if isinstance(leaf.space, MultiBinary) else "")


def _masks(trajectory: Trajectory, used: Array, layout: MaskLayout) -> tuple[Array | None, Array | None]:
    """Return the masks `[T + 1, B, M]` of all observations, and those of the last ones `[B, M]`.

    Where a mask isn't known, nothing is allowed. used: `[T + 1, B]`, where an observation has a meaning.
    """
    given, final, valid = trajectory.action_mask, trajectory.final_action_mask, trajectory.valid
    steps, columns = valid.shape
    own = trajectory.observation.get(MASK_KEY) if isinstance(trajectory.observation, dict) and layout.size else None
    if final is not None and (trajectory.final_row is None or (given is None and own is None)):
        raise ValueError("`final_action_mask` must come with `action_mask` and `final_row`. Received: it alone")
    if given is None and own is None:
        return None, None
    if not layout.size:
        raise ValueError("`action_mask` must be None: the actions have no discrete choice. Received: a mask")
    known = given is not None and np.shape(given)[:1] == (steps + 1,)
    mask = np.zeros((steps + 1, columns, layout.size), bool) if known or own is None else _read(own, used, layout)
    if given is not None:
        given = _booleans("action_mask", given, (steps + known, columns, layout.size), used if known else valid)
        if known:
            mask = given
        else:
            mask[:-1][valid] = given[valid]
    allowed = np.where(valid[..., None], mask[:-1], True).reshape(-1, layout.size)
    if (empty := layout.first_empty(allowed)) is not None:
        row, column = divmod(empty[0], columns)
        raise ValueError(
            "`action_mask` must allow at least one choice in valid rows. "
            f"Received: none of choice {empty[1]} in row {row} of column {column}"
        )
    if trajectory.final_row is None:
        return mask, None
    cut = (trajectory.final_row >= 0) & trajectory.truncated[trajectory.final_row, np.arange(columns)]
    if final is not None:
        return mask, _booleans("final_action_mask", final, (columns, layout.size), cut)
    if own is None:
        return mask, np.zeros((columns, layout.size), bool)
    return mask, _read(trajectory.final_observation[MASK_KEY], cut, layout)


def check_masks_reach(trajectory: Trajectory, n_step: int) -> None:
    """Raise ValueError for a batch `[T, B, M]` of masks none of whose rows has a known mask `n_step` rows later."""
    steps, mask = len(trajectory.reward), trajectory.action_mask
    own = isinstance(trajectory.observation, dict) and MASK_KEY in trajectory.observation
    if mask is not None and np.shape(mask)[:1] == (steps,) and n_step >= steps and not own:
        raise ValueError(
            "`action_mask` must be [T + 1, B, M] where a return is as long as a batch: the mask after the last row "
            f"isn't in it. Received: a mask of {steps} rows, T={steps}, n_step={n_step}"
        )


def _booleans(name: str, given: Any, shape: tuple[int, ...], used: Array) -> Array:
    """Check a mask's shape and, where it is used, its numbers."""
    mask = check_array(name, given, shape, "biu", hint=_HINT)
    if mask.dtype == np.bool_:
        return mask
    wrong = mask[used[..., None] & (mask != 0) & (mask != 1)]
    if wrong.size:
        raise ValueError(f"`{name}` must hold booleans, or 0 and 1. Received: {wrong[0]}")
    return mask.astype(np.bool_)


def _read(leaf: Any, used: Array, layout: MaskLayout) -> Array:
    """Return the mask in observations, `[..., M]`; nothing is allowed where it isn't used."""
    mask = np.zeros((*used.shape, layout.size), bool)
    if used.any():
        rows = map_leaves(lambda values: values[used], leaf)
        mask[used] = layout.read(rows, int(used.sum()), f"observation[{MASK_KEY!r}]")
    return mask


def _check_allowed(mask: Array, spaces: Spaces, actions: list[Array], valid: Array) -> None:
    """Refuse forbidden actions in valid rows: their log-probability would be -1e30."""
    for choice in spaces.masks.choices:
        chosen = actions[choice.leaf].reshape(*valid.shape, -1)[..., choice.entry]
        column = np.where(valid, choice.first_column + chosen, 0)
        forbidden = valid & ~np.take_along_axis(mask, column[..., None], axis=-1)[..., 0]
        if forbidden.any():
            row, environment = np.argwhere(forbidden)[0]
            raise ValueError(
                f"`{spaces.action.leaves[choice.leaf].label}` must be allowed by `action_mask` in valid rows. "
                f"Received: {chosen[row, environment]}, forbidden, in row {row} of column {environment}"
            )


def _check_ends(ended: Array, valid: Array) -> None:
    """Refuse an invalid row within an episode: the return of the row before it would be unknown."""
    lost = valid[:-1] & ~ended[:-1] & ~valid[1:]
    if lost.any():
        row, column = np.argwhere(lost)[0]
        raise ValueError(
            "A row before an invalid one must be `terminated`, or `truncated` with its `truncation_value`. "
            f"Received: neither, in row {row} of column {column}"
        )


def warn_of_bounds(trajectory: Trajectory, spaces: Spaces, distribution: str) -> None:
    """Warn where a first batch's Box actions, `[T, B, ...]`, or observations hardly fit the bounds of their spaces."""
    if not trajectory.valid.any():
        return
    pairs = zip(spaces.action.leaves, spaces.action.flatten(trajectory.action), strict=True)
    for leaf, action in pairs if distribution == "gaussian" and trajectory.valid.sum() > 1 else ():
        if isinstance(leaf.space, Box):
            _warn_of_actions(leaf, np.asarray(action)[trajectory.valid].reshape(-1, math.prod(leaf.shape)))
    observed = spaces.observation.flatten(trajectory.observation)
    for leaf, values in zip(spaces.observation.leaves, observed, strict=True):
        if isinstance(leaf.space, Box) and leaf.path[:1] != (MASK_KEY,):
            _warn_of_observations(leaf, np.asarray(values)[:-1][trajectory.valid])


def _warn_of_actions(leaf: Leaf, action: Array) -> None:
    """Warn where a Gaussian policy's noise and means don't suit the bounds of some components `[N, size]`."""
    low, high = (np.reshape(bound, -1).astype(np.float64) for bound in (leaf.space.low, leaf.space.high))
    mean, std = action.mean(axis=0, dtype=np.float64), action.std(axis=0, dtype=np.float64)
    at_bounds = ((action <= low) | (action >= high)).mean(axis=0)
    bounded = np.isfinite(low) & np.isfinite(high)
    distance = np.where(bounded & (mean < low), low - mean, np.where(bounded & (mean > high), mean - high, 0.0))
    fixed, outside = bounded & (low == high), bounded & (low < high) & (distance > _FAR * std)
    wide = bounded & ~fixed & ~outside & (at_bounds > MAX_SHARE_AT_BOUNDS)
    narrow = bounded & ~fixed & ~outside & (high - low > 2 * _MAX_RANGE * std)
    squashed, rescale = "use `distribution='squashed'`", "the wrapper RescaleAction (to -1 and 1)"
    texts = {
        f"{at_bounds[wide].sum() / max(1, wide.sum()):.0%} of the numbers in the first batch's actions lie on a bound, "
        f"because the policy's noise is wider than the bounds{{}}: {squashed}{_lower_std(low[wide], high[wide])}, or "
        "scale actions in a wrapper": wide,
        "The first batch's actions lie on a bound{}, because the policy's means begin at 0, which is far outside: use "
        f"{rescale}, or `distribution='squashed'`": outside,
        f"The first batch's actions cover less than a fiftieth of the bounds{{}}: {squashed} or {rescale}": narrow,
        "Actions have only one value{}, and noise that means nothing: leave such components out": fixed,
    }
    for text, wrong in texts.items():
        if wrong.any():
            which = "" if wrong.all() else f" of {leaf.label}{_places(leaf, wrong)}"
            warnings.warn(f"{text.format(which)}. Received: {' '.join(str(leaf.space).split())}", stacklevel=4)


def _warn_of_observations(leaf: Leaf, values: Array) -> None:
    """Warn of pictures above their bound, and of numbers `[N, ...]` that an offset hides in float32."""
    received = " ".join(str(leaf.space).split())
    if leaf.space.dtype == np.uint8 and 2 <= len(leaf.shape) <= 4 and values.size:
        if (top := values.max()) > leaf.space.high.max():
            text = f"{leaf.label} reaches {top}, above its bounds, by which pictures are divided: declare high=255"
            warnings.warn(f"{text}. Received: {received}", stacklevel=4)
    elif leaf.dtype == np.float32 and math.prod(leaf.shape) <= _MAX_NUMBERS and len(values) > 1:
        numbers = values.reshape(len(values), -1).astype(np.float64)
        size, std = np.abs(numbers.mean(axis=0)), numbers.std(axis=0)
        varies = np.ptp(numbers, axis=0) > 0  # or did before the cast
        hidden = (size >= 2**24) & (leaf.space.dtype.itemsize > leaf.dtype.itemsize)
        lost = (std <= _LOST * np.spacing(size.astype(np.float32))) & (varies | hidden)
        if lost.any():
            text = (
                f"lies around {size[lost][0]:.6g}, where float32 hardly tells its values apart: subtract the offset in"
            )
            where = f"{leaf.label}{_places(leaf, lost)}"
            warnings.warn(f"{where} {text} the environment. Received: {received}", stacklevel=4)


def _places(leaf: Leaf, wrong: Array) -> str:
    """Return the first components of a leaf that are wrong, bool `[size]`: "[0], [2] and 5 more"."""
    found = (
        [list(map(int, np.unravel_index(place, leaf.shape))) for place in np.flatnonzero(wrong)] if leaf.shape else []
    )
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(str(place) for place in found[:3]) + more


def _lower_std(low: Array, high: Array) -> str:
    """Return advice about the noise's width, half of the bounds' distance from 0; none where means of 0 are outside."""
    distance = float(np.minimum(high, -low).min()) if len(low) else 0.0
    return f", `initial_log_std={math.log(distance / 2):.1f}`" if distance > 0 else ""
