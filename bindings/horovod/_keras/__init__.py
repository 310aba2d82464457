"""What ``horovod.keras`` and ``horovod.tensorflow.keras`` share: optimizers, callbacks and values for Keras 3.

Keras runs on a backend (``KERAS_BACKEND``): tensorflow and torch reduce gradients here, each by its own binding.
"""
