"""Distributed training: ``import horovod.torch as hvd`` and start the program with ``horovodrun -np N``."""

__version__ = "0.1.0"
