"""Worker messages made from the core's words."""

from __future__ import annotations

from horovod.common.core.events import Announce
from horovod.common.core.signature import Signature
from horovod.proto import worker_pb2

__all__ = ["announce_message", "signature_message"]


def signature_message(signature: Signature, name: str) -> worker_pb2.Signature:
    """The signature as the agent reads it, under this name."""
    return worker_pb2.Signature(
        kind=int(signature.kind),  # type: ignore[arg-type]
        name=name,
        unnamed=signature.unnamed,
        dtype=signature.dtype,
        shapes=[worker_pb2.Shape(dims=shape) for shape in signature.shapes],
        tensor_names=signature.tensor_names,
        op=signature.op,
        prescale=signature.prescale,
        postscale=signature.postscale,
        root=signature.root,
        process_set=signature.process_set,
        device=signature.device,
    )


def announce_message(command: Announce) -> worker_pb2.WorkerMessage:
    """An announcement."""
    return worker_pb2.WorkerMessage(
        announce=worker_pb2.Announce(
            request=command.op.request,
            signature=signature_message(command.op.signature, command.op.name),
            contested_plan=command.contested_plan,
            contested_round=command.contested_round,
            no_room_bytes=command.op.no_room_bytes,
            input_gone=command.op.input_gone,
        )
    )
