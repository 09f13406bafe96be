"""Image observations: which leaves are images, the axis of their channels, and convolutional networks for them."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Space
from keras import layers, ops

from actor_learner.networks.layers import apply_layer
from actor_learner.spaces.kinds import Box
from actor_learner.spaces.structure import Leaf, Structure, observation_structure
from actor_learner.system.types import Tensor

Initialize = Callable[[float], keras.initializers.Initializer]
"""Returns the initializer of a kernel of this gain."""

Apply = Callable[[Any, Tensor], Tensor]
"""Applies a layer to a tensor: `apply_layer`."""

_MAX_CHANNELS = 16
_MIN_FRAME_PIXELS = 4  # least height and width in pixels of an image
_MIN_NATURE_PIXELS = 36  # and of one for "nature"
_MAX_BYTE = 255
_CHANNELS_LAST = {"data_format": "channels_last"}
"""Named at each layer: a user's keras.json may say something else."""


def is_grid(space: Any) -> bool:
    """Return True for a leaf of bytes or bits in rank 2 to 4: an image or a board."""
    return isinstance(space, Box) and space.dtype in (np.uint8, np.bool_) and 2 <= len(space.shape) <= 4


def is_image(space: Any, image_network: str = "auto", channel_axis: int | None = None) -> bool:
    """Return True for a leaf that the default network treats as images; with "auto", smaller grids are vectors."""
    if not is_grid(space) or image_network != "auto":
        return is_grid(space)
    if sorted(space.shape[-3:])[-2] < _MIN_FRAME_PIXELS:
        return False
    known = channel_axis is not None or len(space.shape) == 2
    return known or space.dtype == np.uint8 or _guess_channel_axis(space.shape)[0] is not None


def resembles_image(space: Any) -> bool:
    """Return True for numbers of another dtype in the shape of an image or a stack that "nature" reads."""
    if not isinstance(space, Box) or is_grid(space) or not 2 <= len(space.shape) <= 4:
        return False
    if len(space.shape) == 3:
        known = _guess_channel_axis(space.shape)[0] is not None
    else:  # as well a window of measurements, unless its numbers are those of pixels
        known = space.dtype.kind in "iu" or bool(space.low.min() >= 0 and np.isfinite(space.high).all())
        known = known and (len(space.shape) == 2 or _guess_channel_axis(space.shape)[0] is not None)
    return known and sorted(space.shape[-3:])[-2] >= _MIN_NATURE_PIXELS


def describe_image(space: Space[Any], channel_axis: int | None = None, image_network: str = "auto") -> str:
    """Describe in a sentence for each grid its network and the axis of its channels; empty without any."""
    structure = observation_structure(space)
    check_channel_axis(structure, channel_axis)
    grids = [leaf for leaf in structure.leaves if is_grid(leaf.space)]
    return " ".join(_describe_leaf(leaf, structure.plain, image_network, channel_axis) for leaf in grids)


def _describe_leaf(leaf: Leaf, plain: bool, image_network: str, channel_axis: int | None) -> str:
    subject = "Observations" if plain else f"`{leaf.label}`"
    if not is_image(leaf.space, image_network, channel_axis):
        return f"{subject} of shape {leaf.shape} {'are' if plain else 'is'} treated as a vector."
    kind = "are treated as images" if plain else "is treated as an image"
    height, width, axis = _frame_shape(leaf, channel_axis)
    start = f"{subject} of shape {leaf.shape} {kind} for the network {_choose_network(image_network, height, width)!r}"
    if axis is None:
        return f"{start}, one channel."
    stacked = f", the {leaf.shape[0]} frames joined into the channels" if len(leaf.shape) == 4 else ""
    return f"{start}, channels on axis {axis - 3}{stacked}."


def check_channel_axis(structure: Structure, channel_axis: int | None) -> None:
    """Raise ValueError if `channel_axis` is given and all images are of rank 2, which have no such axis."""
    images = [leaf for leaf in structure.leaves if is_grid(leaf.space)]
    if channel_axis is not None and images and all(len(leaf.shape) == 2 for leaf in images):
        expected = "`channel_axis` is for images of rank 3 or 4; an image of rank 2 has a single channel"
        raise ValueError(
            f"{expected}. Received: channel_axis={channel_axis} with {images[0].label} of shape {images[0].shape}"
        )


def image_features(
    image: Tensor,
    leaf: Leaf,
    image_network: str,
    channel_axis: int | None,
    layer_norm: bool,
    initialize: Initialize,
    prefix: str,
) -> Tensor:
    """Compute features of images: `[N, *leaf.shape]` bytes -> `[N, 512]` ("nature"), `[N, 256]` or `[N, 128]`.

    Warns of a guessed channel axis. Raises ValueError for an ambiguous one, or an image too small for its network.
    """
    height, width, axis = _frame_shape(leaf, channel_axis)
    if axis is not None and channel_axis is None and not _guess_channel_axis(leaf.shape)[1]:
        warnings.warn(
            f"The channels of {leaf.label} of shape {leaf.shape} are taken to be on axis {axis - 3}; `channel_axis` "
            "says where they are.",
            stacklevel=5,
        )
    network = _choose_network(image_network, height, width)
    # Scaled before axes move: on CPUs TensorFlow moves float32 more than twice as fast as bytes.
    image = scaled(image, leaf, prefix, pixels=network != "small")
    apply = functools.partial(apply_layer, layer_norm=layer_norm)
    return _BUILDERS[network](_channels_last(image, leaf, axis, prefix), apply, initialize, prefix)


def stacks_frames(leaf: Leaf, channel_axis: int | None) -> bool:
    """Return whether an image is several frames: of rank 4, or with channels first that aren't one or three colours."""
    if len(leaf.shape) == 4:
        return True
    return _frame_shape(leaf, channel_axis)[2] == 0 and leaf.shape[0] not in (1, 3)


def _choose_network(image_network: str, height: int, width: int) -> str:
    if image_network != "auto":
        return image_network
    return "nature" if min(height, width) >= _MIN_NATURE_PIXELS else "small"


def scaled(grid: Tensor, leaf: Leaf, prefix: str, *, pixels: bool) -> Tensor:
    """Divides bytes by the upper bounds of their space: uint8 or bool `[N, *leaf.shape]` -> float32 up to 1.

    Without `pixels`, a bound of 255 says little of the values, which may be a few codes, as in MiniGrid: their square
    roots keep a code of 10 at 0.2 instead of 0.04.
    """
    high = np.maximum(np.asarray(leaf.space.high, np.float32), 1.0)
    scale = 1 / float(high.flat[0]) if (high == high.flat[0]).all() else 1 / high
    grid = layers.Rescaling(scale, name=f"{prefix}scale")(grid)
    return grid if pixels or high.max() < _MAX_BYTE else ops.sqrt(grid)


def _channels_last(image: Tensor, leaf: Leaf, axis: int | None, prefix: str) -> Tensor:
    """Move the channels last: `[N, *shape]` -> `[N, height, width, channels]`; stacked frames join the channels."""
    shape = leaf.shape
    if axis is None:
        return layers.Reshape((*shape, 1), name=f"{prefix}channels_last")(image)
    frame = shape[-3:]
    if len(shape) == 3:
        return image if axis == 2 else layers.Permute((2, 3, 1), name=f"{prefix}channels_last")(image)
    height, width = (size for index, size in enumerate(frame) if index != axis)
    permutation = (2, 3, 1, 4) if axis == 2 else (3, 4, 1, 2)
    image = layers.Permute(permutation, name=f"{prefix}channels_last")(image)
    return layers.Reshape((height, width, shape[0] * frame[axis]), name=f"{prefix}merge_stack")(image)


def _frame_shape(leaf: Leaf, channel_axis: int | None) -> tuple[int, int, int | None]:
    """Return height, width and the axis of the channels in a frame, 0 or 2, or None for rank 2: one channel.

    `channel_axis` counts axes of the whole shape, a stack of frames included.
    """
    if len(leaf.shape) == 2:
        return leaf.shape[0], leaf.shape[1], None
    axis = _guess_channel_axis(leaf.shape)[0] if channel_axis is None else _given_channel_axis(leaf, channel_axis)
    if axis is None:
        expected = f"the first or the last, with at most {_MAX_CHANNELS} channels; give `channel_axis`"
        raise ValueError(
            f"The channel axis of an image must be {expected}. Received: {leaf.label} of shape {leaf.shape}"
        )
    height, width = (size for index, size in enumerate(leaf.shape[-3:]) if index != axis)
    return height, width, axis


def _given_channel_axis(leaf: Leaf, channel_axis: int) -> int:
    axes = {len(leaf.shape) - 3: 0, len(leaf.shape) - 1: 2, -3: 0, -1: 2}
    if channel_axis not in axes:
        place = f"{leaf.label} of shape {leaf.shape}"
        expected = f"the first or the last axis of a frame, {', '.join(map(str, axes))}"
        raise ValueError(f"`channel_axis` must be {expected}. Received: channel_axis={channel_axis} with {place}")
    return axes[channel_axis]


def _guess_channel_axis(shape: tuple[int, ...]) -> tuple[int | None, bool]:
    """Return 0 or 2, a frame's first or last axis, or None, and False if the other one may be meant as well.

    It is the one that isn't a side of a square, or the only one of at most 16, or the smaller; of a cube the last.
    """
    first, middle, last = shape[-3:]
    if first != last and middle in (first, last):
        return (2 if middle == first else 0), True
    if min(first, last) > _MAX_CHANNELS or first == last != middle:
        return None, False
    return (0 if first < last else 2), max(first, last) > _MAX_CHANNELS


def _nature(x: Tensor, apply: Apply, initialize: Initialize, prefix: str) -> Tensor:
    """Return the network of Mnih et al. 2015 (doi:10.1038/nature14236)."""
    height, width = x.shape[1:3]
    if min(height, width) < _MIN_NATURE_PIXELS:
        least = f"{_MIN_NATURE_PIXELS} x {_MIN_NATURE_PIXELS} pixels; image_network='auto' takes smaller ones"
        raise ValueError(f"`image_network='nature'` needs images of at least {least}. Received: {height} x {width}")
    gain = math.sqrt(2)
    for number, (filters, size, stride) in enumerate(((32, 8, 4), (64, 4, 2), (64, 3, 1)), start=1):
        kernel, name = initialize(gain), f"{prefix}convolution_{number}"
        options = {"kernel_initializer": kernel, "name": name, **_CHANNELS_LAST}
        x = apply(layers.Conv2D(filters, size, stride, activation="relu", **options), x)
    x = layers.Flatten(name=f"{prefix}flatten", **_CHANNELS_LAST)(x)
    return apply(layers.Dense(512, "relu", kernel_initializer=initialize(gain), name=f"{prefix}features"), x)


def _impala(x: Tensor, apply: Apply, initialize: Initialize, prefix: str, *, pooled: bool = False) -> Tensor:
    """Return the residual network of IMPALA (arXiv:1802.01561, figure 3), without its LSTM.

    pooled: average each filter over the image before the dense layer, as Impoola does (arXiv:2503.05546).
    """
    gain = math.sqrt(2)

    def convolve(x: Tensor, filters: int, activation: str | None = None) -> Tensor:
        kernel = initialize(gain)
        options = {"kernel_initializer": kernel, **_CHANNELS_LAST}
        return apply(layers.Conv2D(filters, 3, padding="same", activation=activation, **options), x)

    for filters in (16, 32, 32):
        x = layers.MaxPooling2D(3, 2, padding="same", **_CHANNELS_LAST)(convolve(x, filters))
        for _ in range(2):
            residual = convolve(layers.ReLU()(x), filters, "relu")
            x = layers.Add()([x, convolve(residual, filters)])
    last = layers.GlobalAveragePooling2D if pooled else layers.Flatten
    x = last(name=f"{prefix}{'pooled' if pooled else 'flatten'}", **_CHANNELS_LAST)(layers.ReLU()(x))
    return apply(layers.Dense(256, "relu", kernel_initializer=initialize(gain), name=f"{prefix}features"), x)


def _small(x: Tensor, apply: Apply, initialize: Initialize, prefix: str) -> Tensor:
    """Return the network of MinAtar (arXiv:1903.03176) for frames of few pixels."""
    gain = math.sqrt(2)
    padding = "valid" if min(x.shape[1:3]) >= 3 else "same"
    kernel, name = initialize(gain), f"{prefix}convolution_1"
    options = {"kernel_initializer": kernel, "name": name, **_CHANNELS_LAST}
    x = apply(layers.Conv2D(16, 3, padding=padding, activation="relu", **options), x)
    x = layers.Flatten(name=f"{prefix}flatten", **_CHANNELS_LAST)(x)
    return apply(layers.Dense(128, "relu", kernel_initializer=initialize(gain), name=f"{prefix}features"), x)


_BUILDERS: dict[str, Callable[..., Tensor]] = {
    "nature": _nature,
    "impala": _impala,
    "impoola": functools.partial(_impala, pooled=True),
    "small": _small,
}
IMAGE_NETWORKS = ("auto", *_BUILDERS)
