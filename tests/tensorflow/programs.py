"""Whole scripts of users, run by test_programs.py on real ranks."""

from __future__ import annotations

__all__ = ["TUTORIAL"]

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
