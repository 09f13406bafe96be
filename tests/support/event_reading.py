"""What stands in a run's event files, in the order in which TensorBoard reads them."""

import tensorflow as tf

from actor_learner.runs.tensorboard import PREFIX


def events_of(folder):
    files = sorted(map(str, folder.glob(f"{PREFIX}*")))
    return [tf.compat.v1.Event.FromString(record.numpy()) for file in files for record in tf.data.TFRecordDataset(file)]


def scalars_of(folder):
    """[(step, value)] by tag."""
    found = {}
    for event in events_of(folder):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found
