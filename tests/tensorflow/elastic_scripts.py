"""Elastic scripts as users wrote them for Horovod; test_programs.py and checks_elastic.py run them on real ranks."""

from __future__ import annotations

__all__ = ["KERAS", "TF2"]

# The pattern of Horovod's elastic guide for TensorFlow 2; the data are made up, and results are printed.
TF2 = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()

lr = 0.01
tf.keras.utils.set_random_seed(hvd.rank())
rng = tf.random.Generator.from_seed(7)
images = rng.normal((64, 6))
labels = tf.cast(tf.reduce_sum(images[:, :2], axis=1) > 0, tf.int64)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(8)

model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(8, activation='relu'), tf.keras.layers.Dense(2)])
optimizer = tf.optimizers.Adam(lr * hvd.size())
loss_fn = tf.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_one_batch(data, target, allreduce=True):
    with tf.GradientTape() as tape:
        probs = model(data, training=True)
        loss = loss_fn(target, probs)
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


# Initialize model and optimizer state so we can synchronize across workers
for data, target in dataset.take(1):
    train_one_batch(data, target, allreduce=False)


@hvd.elastic.run
def train(state):
    first = last = None
    for batch, (data, target) in enumerate(dataset.skip(state.batch).take(30 - state.batch)):
        state.batch = state.batch + 1
        last = float(train_one_batch(data, target))
        first = last if first is None else first
        if state.batch % 10 == 0:
            state.commit()
        else:
            state.check_host_updates()
    return first, last


def on_state_reset():
    optimizer.learning_rate.assign(lr * hvd.size())


state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
state.register_reset_callbacks([on_state_reset])
first, last = train(state)
everywhere = hvd.allgather_object(b"".join(v.numpy().tobytes() for v in [*model.variables, *optimizer.variables]))
print("RESULT", hvd.size(), state.batch, last < first, len(set(everywhere)))
"""

# The same for Keras: fit, with the callbacks that keep the state.
KERAS = """
import numpy as np
import keras
import horovod.keras as hvd

hvd.init()

lr, epochs, steps = 0.01, 3, 4
keras.utils.set_random_seed(hvd.rank())
rng = np.random.default_rng(5)
x = rng.normal(size=(8 * steps, 6)).astype("float32")
y = (x[:, :1] - x[:, 1:2]).astype("float32")

model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(lr * hvd.size()))
model.compile(loss="mse", optimizer=optimizer)


def on_state_reset():
    model.optimizer.learning_rate = lr * hvd.size()


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])
callbacks = [
    hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.UpdateEpochStateCallback(state),
]


@hvd.elastic.run
def train(state):
    return state.model.fit(x, y, batch_size=8, shuffle=False, epochs=epochs - state.epoch, callbacks=callbacks, verbose=0)


history = train(state)
losses = history.history["loss"]
everywhere = hvd.allgather(np.stack([np.concatenate([w.ravel() for w in model.get_weights()])]), name="weights")
everywhere = keras.ops.convert_to_numpy(everywhere)
print("RESULT", hvd.size(), state.epoch, state.batch, losses[-1] < losses[0], bool((everywhere == everywhere[0]).all()))
"""
