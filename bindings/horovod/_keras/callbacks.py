"""Callbacks for ``fit``: equal weights at the start, averaged metrics, learning rates that suit many ranks.

A momentum correction changes the optimizer's momentum for one batch.  Keras reads a momentum when it traces a graph:
where training runs in graphs (the default on TensorFlow) the correction can't take effect, and a warning says so once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from horovod._keras.backends import backend_name
from horovod._keras.optimizer import is_same_variable
from horovod._keras.values import broadcast_state
from horovod.common.array_signatures import require_client
from horovod.common.exceptions import MismatchError, UsageError
from horovod.common.objects import allgather_pickled
from horovod.common.process_sets import global_process_set

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes the weights and the optimizer's state those of ``root_rank`` on all ranks, once.

    It does so before the first batch where the model is built by then, else after it.  ``local_variables`` are left
    alone.  Random seeds stay different, so that ranks drop out differently.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        listed = local_variables if isinstance(local_variables, (list, tuple)) else [local_variables]
        self._local = [variable for variable in listed if variable is not None]
        if any(not hasattr(variable, "assign") for variable in self._local):
            raise UsageError("local_variables should be a variable or a list of variables.")
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False

    def register_local_var(self, var: Any) -> None:
        """Leaves this variable alone."""
        self._local.append(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts, where everything is there to be broadcast."""
        _check_steps((self.params or {}).get("steps"))
        optimizer = self.model.optimizer
        if not self.model.built:
            return
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch, if it could not be done before."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self.broadcast_done:
            return
        self.broadcast_done = True
        weights = [v for v in self.model.weights if not any(is_same_variable(v, local) for local in self._local)]
        broadcast_state(_numbers(weights), self.root_rank, "model")
        if self.model.optimizer is not None:
            broadcast_state(_numbers(self.model.optimizer.variables), self.root_rank, "optimizer")


def _check_steps(steps: int | None) -> None:
    """Ranks that make more steps than others would wait for them at the end, or average steps of two epochs."""
    counts = allgather_pickled(require_client(), steps, "steps", global_process_set)
    known = {rank: count for rank, count in enumerate(counts) if count is not None}
    if len(set(known.values())) > 1:
        told = ", ".join(f"rank {rank} has {count}" for rank, count in known.items())
        raise MismatchError(
            f"Ranks have different numbers of batches in an epoch ({told}), and each step needs all of them. Cut the "
            f"data of all ranks to {min(known.values())} batches."
        )


def _numbers(variables: Iterable[Any]) -> list[Any]:
    return [variable for variable in variables if "string" not in str(variable.dtype)]


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over the ranks: each rank counts the same, however many samples it had.

    Put it before callbacks that read metrics; the history and the progress bar come after all of them.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replaces the numbers in ``logs`` by their averages."""
        if not logs:
            return
        client = require_client()
        if client.size == 1:
            return
        mine = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        everybody = allgather_pickled(client, mine, "metrics", global_process_set)
        for rank, theirs in enumerate(everybody):
            if sorted(theirs) != sorted(everybody[0]):
                raise MismatchError(
                    f"MetricAverageCallback: rank 0 has the metrics {sorted(everybody[0])}, rank {rank} has "
                    f"{sorted(theirs)}. Compile and validate alike on all ranks, or leave this callback out."
                )
        logs.update({name: sum(theirs[name] for theirs in everybody) / client.size for name in mine})


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr`` times ``multiplier`` of the epoch, from ``start_epoch`` to ``end_epoch``.

    A number as multiplier is a power of the epochs since the start.  With ``staircase`` it changes with epochs, else
    with every batch, for which ``steps_per_epoch`` must be known.  Raises ValueError without ``initial_lr``.
    """

    def __init__(
        self,
        initial_lr: float | None,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise UsageError("Parameter `initial_lr` is required.")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._kept_momentum: float | None = None
        self._has_warned = False
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            factor = float(multiplier)
            self.multiplier = lambda epoch: factor ** (epoch - self.start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that there is a rate that can be set, and finds out how many steps there are in an epoch."""
        rate = getattr(self.model.optimizer, "_learning_rate", None)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            raise UsageError(
                f"{type(self).__name__}: the optimizer has a {type(rate).__name__}, which sets the learning rate itself. "
                "Give the optimizer a number, or leave this callback out."
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise UsageError(
                    "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter "
                    f"to the {type(self).__name__}()."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers where training is."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of this batch."""
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if not self.staircase:
            self._set_rate(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._set_rate(self.current_epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Gives the momentum back that it had."""
        if self._kept_momentum is not None:
            self.model.optimizer.momentum = self._kept_momentum
            self._kept_momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Puts the rate into the epoch's logs."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set_rate(self, epoch: float) -> None:
        old, new = self._rate(), float(self.initial_lr * self.multiplier(epoch))
        self.model.optimizer.learning_rate = new
        momentum = getattr(self.model.optimizer, "momentum", None)
        if not self.momentum_correction or not momentum or not old or old == new:
            return
        if backend_name() != "torch" and not self.model.run_eagerly:
            self._warn_of_graphs()
            return
        self._kept_momentum = momentum
        self.model.optimizer.momentum = momentum * new / old

    def _warn_of_graphs(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{type(self).__name__}: the momentum is part of the traced graph and is not corrected when the learning "
                "rate changes. Give momentum_correction=False to say that this is meant, or compile with "
                "run_eagerly=True.",
                RuntimeWarning,
                stacklevel=2,
            )


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr``, batch by batch over ``warmup_epochs``."""

    def __init__(
        self,
        initial_lr: float | None,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # At the end of the warm-up the last batch has the full rate.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            size = require_client().size
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Says on rank 0 when the warm-up is over, if asked to."""
        super().on_epoch_end(epoch, logs)
        if (
            self.end_epoch is not None
            and epoch == self.end_epoch - 1
            and self.verbose > 0
            and require_client().rank == 0
        ):
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """A ModelCheckpoint that keeps the best model; set its ``filepath`` before training."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        suffix = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            f"unset{suffix}",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None
