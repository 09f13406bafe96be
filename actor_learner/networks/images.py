"""Image observations: which leaves are images, the axis of their channels, and convolutional networks for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from gymnasium.spaces import Space
from keras import layers

from actor_learner.spaces.kinds import Box
from actor_learner.spaces.structure import Leaf, Structure, observation_structure
from actor_learner.system.fields import refusal

Tensor = Any
Initialize = Callable[[float], keras.initializers.Initializer]
"""Returns the initializer of a kernel of this gain."""

_MAXIMUM_CHANNELS = 16


def is_image(space: Any) -> bool:
    """Returns True for a space that the default network treats as images: uint8 of rank 2 to 4."""
    return isinstance(space, Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


def describe_image(space: Space[Any], channel_axis: int | None = None) -> str:
    """Describes in a sentence for each image which axis is its channels; empty where there is no image."""
    structure = observation_structure(space)
    check_channel_axis(structure, channel_axis)
    images = [leaf for leaf in structure.leaves if is_image(leaf.space)]
    return " ".join(_describe_leaf(leaf, structure.plain, channel_axis) for leaf in images)


def _describe_leaf(leaf: Leaf, plain: bool, channel_axis: int | None) -> str:
    subject = "Observations" if plain else f"`{leaf.label}`"
    verb = "are treated as images" if plain else "is treated as an image"
    if len(leaf.shape) == 2:
        return f"{subject} of shape {leaf.shape} {verb} of one channel."
    axis = _find_channel_axis(leaf, channel_axis)
    stacked = f", the {leaf.shape[0]} frames joined into the channels" if len(leaf.shape) == 4 else ""
    return f"{subject} of shape {leaf.shape} {verb}, channels on axis {axis - 3}{stacked}."


def check_channel_axis(structure: Structure, channel_axis: int | None) -> None:
    """Raises ValueError if `channel_axis` is given and all images are of rank 2, which have no such axis."""
    images = [leaf for leaf in structure.leaves if is_image(leaf.space)]
    if channel_axis is not None and images and all(len(leaf.shape) == 2 for leaf in images):
        expected = "`channel_axis` is for images of rank 3 or 4; an image of rank 2 has a single channel"
        raise ValueError(
            f"{expected}. Received: channel_axis={channel_axis} with {images[0].label} of shape {images[0].shape}"
        )


def image_features(
    image: Tensor, leaf: Leaf, image_network: str, channel_axis: int | None, initialize: Initialize, prefix: str
) -> Tensor:
    """Computes features of images: `[N, *leaf.shape]` bytes -> `[N, 512]` ("nature") or `[N, 256]` ("impala").

    Raises ValueError for an unknown network, an ambiguous channel axis, or an image too small for its network.
    """
    if image_network not in _IMAGE_NETWORKS:
        raise refusal("image_network", f"one of {sorted(_IMAGE_NETWORKS)}", image_network)
    # Scaled before axes move: on CPUs TensorFlow moves float32 more than twice as fast as bytes.
    scaled = layers.Rescaling(1 / 255, name=f"{prefix}scale")(image)
    return _IMAGE_NETWORKS[image_network](_channels_last(scaled, leaf, channel_axis, prefix), initialize, prefix)


def _channels_last(image: Tensor, leaf: Leaf, channel_axis: int | None, prefix: str) -> Tensor:
    """Moves the channels last: `[N, *shape]` -> `[N, height, width, channels]`; stacked frames join the channels."""
    shape = leaf.shape
    if len(shape) == 2:
        return layers.Reshape((*shape, 1), name=f"{prefix}channels_last")(image)
    frame = shape[-3:]
    axis = _find_channel_axis(leaf, channel_axis)
    if len(shape) == 3:
        return image if axis == 2 else layers.Permute((2, 3, 1), name=f"{prefix}channels_last")(image)
    height, width = (size for index, size in enumerate(frame) if index != axis)
    permutation = (2, 3, 1, 4) if axis == 2 else (3, 4, 1, 2)
    image = layers.Permute(permutation, name=f"{prefix}channels_last")(image)
    return layers.Reshape((height, width, shape[0] * frame[axis]), name=f"{prefix}merge_stack")(image)


def _find_channel_axis(leaf: Leaf, channel_axis: int | None) -> int:
    """Returns 0 or 2, a frame's first or last axis: the given one, else the smaller, of at most 16 channels.

    `channel_axis` counts axes of the whole shape, a stack of frames included.
    """
    if channel_axis is not None:
        axes = {len(leaf.shape) - 3: 0, len(leaf.shape) - 1: 2, -3: 0, -1: 2}
        if channel_axis not in axes:
            place = f"{leaf.label} of shape {leaf.shape}"
            expected = f"the first or the last axis of a frame, {', '.join(map(str, axes))}"
            raise ValueError(f"`channel_axis` must be {expected}. Received: channel_axis={channel_axis} with {place}")
        return axes[channel_axis]
    first, _, last = leaf.shape[-3:]
    if min(first, last) > _MAXIMUM_CHANNELS or first == last:
        expected = f"the first or the last, with at most {_MAXIMUM_CHANNELS} channels; give `channel_axis`"
        raise ValueError(
            f"The channel axis of an image must be {expected}. Received: {leaf.label} of shape {leaf.shape}"
        )
    return 0 if first < last else 2


def _nature(x: Tensor, initialize: Initialize, prefix: str) -> Tensor:
    """The network of Mnih et al. 2015 (doi:10.1038/nature14236)."""
    height, width = x.shape[1:3]
    if min(height, width) < 36:
        needed = "images of at least 36 x 36 pixels; image_network='impala' takes smaller ones"
        raise ValueError(f"`image_network='nature'` needs {needed}. Received: {height} x {width}")
    gain = math.sqrt(2)
    for number, (filters, size, stride) in enumerate(((32, 8, 4), (64, 4, 2), (64, 3, 1)), start=1):
        kernel, name = initialize(gain), f"{prefix}convolution_{number}"
        x = layers.Conv2D(filters, size, stride, activation="relu", kernel_initializer=kernel, name=name)(x)
    x = layers.Flatten(name=f"{prefix}flatten")(x)
    return layers.Dense(512, "relu", kernel_initializer=initialize(gain), name=f"{prefix}features")(x)


def _impala(x: Tensor, initialize: Initialize, prefix: str) -> Tensor:
    """The residual network of IMPALA (arXiv:1802.01561, figure 3), without its LSTM."""
    gain = math.sqrt(2)

    def convolve(x: Tensor, filters: int, activation: str | None = None) -> Tensor:
        kernel = initialize(gain)
        return layers.Conv2D(filters, 3, padding="same", activation=activation, kernel_initializer=kernel)(x)

    for filters in (16, 32, 32):
        x = layers.MaxPooling2D(3, 2, padding="same")(convolve(x, filters))
        for _ in range(2):
            residual = convolve(layers.ReLU()(x), filters, "relu")
            x = layers.Add()([x, convolve(residual, filters)])
    x = layers.Flatten(name=f"{prefix}flatten")(layers.ReLU()(x))
    return layers.Dense(256, "relu", kernel_initializer=initialize(gain), name=f"{prefix}features")(x)


_IMAGE_NETWORKS = {"nature": _nature, "impala": _impala}
