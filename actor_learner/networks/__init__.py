"""Keras networks: the default ones, the layers that they are made of, and the contract that any network keeps."""

from actor_learner.networks.acting import acting_network, tensor_names
from actor_learner.networks.contract import (
    CHECKED_ROWS,
    all_layers,
    arrange,
    call_network,
    cap_statistics,
    check_contract,
    check_network,
    distribution_and_hold,
    named_leaves,
    network_distribution,
    normalization_layers,
    normalized_leaf,
    takes_mask,
    training_dependent_layers,
)
from actor_learner.networks.default import default_network, with_normalization
from actor_learner.networks.images import describe_image, is_image
from actor_learner.networks.layers import (
    ActionDistribution,
    LogStd,
    ObservationNormalization,
    OneHot,
    merge_statistics,
)

__all__ = [
    "CHECKED_ROWS",
    "ActionDistribution",
    "LogStd",
    "ObservationNormalization",
    "OneHot",
    "acting_network",
    "all_layers",
    "arrange",
    "call_network",
    "cap_statistics",
    "check_contract",
    "check_network",
    "default_network",
    "describe_image",
    "distribution_and_hold",
    "is_image",
    "merge_statistics",
    "named_leaves",
    "network_distribution",
    "normalization_layers",
    "normalized_leaf",
    "takes_mask",
    "tensor_names",
    "training_dependent_layers",
    "with_normalization",
]
