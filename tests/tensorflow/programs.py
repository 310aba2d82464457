"""Whole scripts of users, run by test_programs.py on real ranks."""

from __future__ import annotations

__all__ = ["DEATHS", "LOADS", "SAVES", "TUTORIAL"]

# The script of Horovod's tutorial; only its data comes from a file.
TUTORIAL = """
import sys
import numpy as np
import tensorflow as tf
tf.keras.utils.set_random_seed(7)
data = np.load(sys.argv[1])
x_train, y_train, x_test, y_test = data["x"], data["y"], data["x_test"], data["y_test"]

import horovod.tensorflow as hvd
hvd.init()
model = tf.keras.models.Sequential([
    tf.keras.layers.Dense(128, activation='relu', input_shape=(784,)),
    tf.keras.layers.Dense(64, activation='relu'),
    tf.keras.layers.Dense(10, activation='softmax'),
])
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(learning_rate=0.001))
model.compile(optimizer=optimizer, loss='categorical_crossentropy', metrics=['accuracy'])
model.fit(x_train, y_train, epochs=10, batch_size=32, verbose=0)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
import hashlib
print("RESULT", accuracy, hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
hvd.shutdown()
"""

# Rank 0 saves what it has trained, in the format of the file's name.
SAVES = """
import sys
import keras
import numpy as np
import horovod.tensorflow.keras as hvd

hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), loss="mse")
x = np.full((4, 3), 1.0 + hvd.rank(), "float32")
model.fit(x, x[:, :2], epochs=3, verbose=0)
if hvd.rank() == 0:
    model.save(sys.argv[1])
print("SAVED", float(model.evaluate(np.ones((4, 3)), np.ones((4, 2)), verbose=0)))
hvd.shutdown()
"""

# A process that has no Horovod loads it and goes on: the same loss, then a smaller one; the optimizer's state is there.
LOADS = """
import sys


class Missing:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "horovod":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Missing())
import keras
import numpy as np

model = keras.models.load_model(sys.argv[1])
x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
before = float(model.evaluate(x, y, verbose=0))
steps = int(model.optimizer.iterations)
model.fit(x, y, epochs=20, verbose=0)
print("LOADED", type(model.optimizer).__name__, steps, before, float(model.evaluate(x, y, verbose=0)) < before)
"""

_BEGIN = """
import os, signal, time
import numpy as np


def dies_at(step):
    if step == 20 and hvd.rank() == 1:
        print("DYING", time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

"""

_FIT = (
    _BEGIN
    + """
import keras
import BINDING as hvd

hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
watch = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: dies_at(batch))
model.fit(np.ones((400, 8), "float32"), np.ones((400, 1), "float32"), batch_size=4, callbacks=[watch])
print("TRAINED")
"""
)

_TAPE = (
    _BEGIN
    + """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
w = tf.Variable(tf.ones(5))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((w * x) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    w.assign_sub(0.01 * tape.gradient(loss, [w])[0])
    return loss


for number in range(100):
    dies_at(number)
    step(tf.ones(5))
print("TRAINED")
"""
)

_SESSION = (
    _BEGIN
    + """
import tensorflow as tf
import horovod.tensorflow as hvd
tf1 = tf.compat.v1

hvd.init()
with tf.Graph().as_default():
    w = tf1.get_variable("w", initializer=[1.0, 2.0])
    step = tf1.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf1.train.AdamOptimizer(0.01))
    train = optimizer.minimize(tf.reduce_sum(w * w), global_step=step)
    hooks = [hvd.BroadcastGlobalVariablesHook(0), tf1.train.StopAtStepHook(last_step=100)]
    with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
        number = 0
        while not session.should_stop():
            dies_at(number)
            session.run(train)
            number += 1
print("TRAINED")
"""
)

# Rank 1 kills itself before its step 20.  With each script: the backend of Keras, and the error of the other rank.
DEATHS: dict[str, tuple[str, str, str]] = {
    "fit": (_FIT.replace("BINDING", "horovod.tensorflow.keras"), "tensorflow", "UnknownError"),
    "fit on torch": (_FIT.replace("BINDING", "horovod.keras"), "torch", "RankLostError"),
    "fit on jax": (_FIT.replace("BINDING", "horovod.keras"), "jax", "JaxRuntimeError"),
    "tape": (_TAPE, "tensorflow", "UnknownError"),
    "session": (_SESSION, "tensorflow", "UnknownError"),
}
