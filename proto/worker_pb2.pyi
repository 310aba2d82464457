from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALLREDUCE: _ClassVar[Kind]
    ALLGATHER: _ClassVar[Kind]
    BROADCAST: _ClassVar[Kind]
    ALLTOALL: _ClassVar[Kind]
    REDUCESCATTER: _ClassVar[Kind]
    BARRIER: _ClassVar[Kind]

class ErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISMATCH: _ClassVar[ErrorKind]
    INVALID: _ClassVar[ErrorKind]
    NOT_WHILE_JOINED: _ClassVar[ErrorKind]
    SHUT_DOWN: _ClassVar[ErrorKind]
    LOST: _ClassVar[ErrorKind]
    STALLED: _ClassVar[ErrorKind]
    NO_ROOM: _ClassVar[ErrorKind]
ALLREDUCE: Kind
ALLGATHER: Kind
BROADCAST: Kind
ALLTOALL: Kind
REDUCESCATTER: Kind
BARRIER: Kind
MISMATCH: ErrorKind
INVALID: ErrorKind
NOT_WHILE_JOINED: ErrorKind
SHUT_DOWN: ErrorKind
LOST: ErrorKind
STALLED: ErrorKind
NO_ROOM: ErrorKind

class Shape(_message.Message):
    __slots__ = ("dims",)
    DIMS_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dims: _Optional[_Iterable[int]] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("kind", "name", "unnamed", "dtype", "shapes", "tensor_names", "op", "prescale", "postscale", "root", "process_set", "device")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_NAMES_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    PRESCALE_FIELD_NUMBER: _ClassVar[int]
    POSTSCALE_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    kind: Kind
    name: str
    unnamed: bool
    dtype: int
    shapes: _containers.RepeatedCompositeFieldContainer[Shape]
    tensor_names: _containers.RepeatedScalarFieldContainer[str]
    op: int
    prescale: float
    postscale: float
    root: int
    process_set: int
    device: int
    def __init__(self, kind: _Optional[_Union[Kind, str]] = ..., name: _Optional[str] = ..., unnamed: bool = ..., dtype: _Optional[int] = ..., shapes: _Optional[_Iterable[_Union[Shape, _Mapping]]] = ..., tensor_names: _Optional[_Iterable[str]] = ..., op: _Optional[int] = ..., prescale: _Optional[float] = ..., postscale: _Optional[float] = ..., root: _Optional[int] = ..., process_set: _Optional[int] = ..., device: _Optional[int] = ...) -> None: ...

class ProcessSet(_message.Message):
    __slots__ = ("id", "ranks")
    ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    id: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("hello", "announce", "retire_ack", "join", "add_process_set", "remove_process_set", "leave")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    RETIRE_ACK_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ADD_PROCESS_SET_FIELD_NUMBER: _ClassVar[int]
    REMOVE_PROCESS_SET_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    announce: Announce
    retire_ack: RetireAck
    join: Join
    add_process_set: AddProcessSet
    remove_process_set: RemoveProcessSet
    leave: Leave
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., announce: _Optional[_Union[Announce, _Mapping]] = ..., retire_ack: _Optional[_Union[RetireAck, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., add_process_set: _Optional[_Union[AddProcessSet, _Mapping]] = ..., remove_process_set: _Optional[_Union[RemoveProcessSet, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "nonce", "rank", "pid", "generation", "arena_bytes", "process_sets", "dynamic_process_sets", "size", "extended_join")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SETS_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_PROCESS_SETS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_JOIN_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    nonce: str
    rank: int
    pid: int
    generation: int
    arena_bytes: int
    process_sets: _containers.RepeatedCompositeFieldContainer[ProcessSet]
    dynamic_process_sets: bool
    size: int
    extended_join: bool
    def __init__(self, protocol: _Optional[int] = ..., nonce: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., generation: _Optional[int] = ..., arena_bytes: _Optional[int] = ..., process_sets: _Optional[_Iterable[_Union[ProcessSet, _Mapping]]] = ..., dynamic_process_sets: bool = ..., size: _Optional[int] = ..., extended_join: bool = ...) -> None: ...

class Announce(_message.Message):
    __slots__ = ("request", "signature", "contested_plan", "contested_round", "no_room_bytes", "input_gone")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CONTESTED_PLAN_FIELD_NUMBER: _ClassVar[int]
    CONTESTED_ROUND_FIELD_NUMBER: _ClassVar[int]
    NO_ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUT_GONE_FIELD_NUMBER: _ClassVar[int]
    request: int
    signature: Signature
    contested_plan: int
    contested_round: int
    no_room_bytes: int
    input_gone: bool
    def __init__(self, request: _Optional[int] = ..., signature: _Optional[_Union[Signature, _Mapping]] = ..., contested_plan: _Optional[int] = ..., contested_round: _Optional[int] = ..., no_room_bytes: _Optional[int] = ..., input_gone: bool = ...) -> None: ...

class RetireAck(_message.Message):
    __slots__ = ("plans",)
    PLANS_FIELD_NUMBER: _ClassVar[int]
    plans: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, plans: _Optional[_Iterable[int]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class AddProcessSet(_message.Message):
    __slots__ = ("request", "ranks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    request: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class RemoveProcessSet(_message.Message):
    __slots__ = ("request", "id")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    request: int
    id: int
    def __init__(self, request: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("generation", "reason", "finished")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    finished: bool
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ..., finished: bool = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("welcome", "rejected", "plan_ready", "refused", "retire", "joined", "process_set_ready", "process_set_removed", "epoch_ended", "closed", "warning", "waiting")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    PLAN_READY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SET_READY_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SET_REMOVED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ENDED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    rejected: Rejected
    plan_ready: PlanReady
    refused: Refused
    retire: Retire
    joined: Joined
    process_set_ready: ProcessSetReady
    process_set_removed: ProcessSetRemoved
    epoch_ended: EpochEnded
    closed: Closed
    warning: Warning
    waiting: Waiting
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., plan_ready: _Optional[_Union[PlanReady, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., retire: _Optional[_Union[Retire, _Mapping]] = ..., joined: _Optional[_Union[Joined, _Mapping]] = ..., process_set_ready: _Optional[_Union[ProcessSetReady, _Mapping]] = ..., process_set_removed: _Optional[_Union[ProcessSetRemoved, _Mapping]] = ..., epoch_ended: _Optional[_Union[EpochEnded, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., warning: _Optional[_Union[Warning, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "homogeneous", "process_sets", "local_ranks", "hosts")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    CROSS_RANK_FIELD_NUMBER: _ClassVar[int]
    CROSS_SIZE_FIELD_NUMBER: _ClassVar[int]
    HOMOGENEOUS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SETS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANKS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    process_sets: _containers.RepeatedCompositeFieldContainer[ProcessSet]
    local_ranks: _containers.RepeatedScalarFieldContainer[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., local_rank: _Optional[int] = ..., local_size: _Optional[int] = ..., cross_rank: _Optional[int] = ..., cross_size: _Optional[int] = ..., homogeneous: bool = ..., process_sets: _Optional[_Iterable[_Union[ProcessSet, _Mapping]]] = ..., local_ranks: _Optional[_Iterable[int]] = ..., hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("reason", "retry")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retry: bool
    def __init__(self, reason: _Optional[str] = ..., retry: bool = ...) -> None: ...

class PlanReady(_message.Message):
    __slots__ = ("plan", "offset", "requests", "signature")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    plan: int
    offset: int
    requests: _containers.RepeatedScalarFieldContainer[int]
    signature: Signature
    def __init__(self, plan: _Optional[int] = ..., offset: _Optional[int] = ..., requests: _Optional[_Iterable[int]] = ..., signature: _Optional[_Union[Signature, _Mapping]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("request", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: int
    error: Error
    def __init__(self, request: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: ErrorKind
    text: str
    def __init__(self, kind: _Optional[_Union[ErrorKind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class Retire(_message.Message):
    __slots__ = ("plan", "limit")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    plan: int
    limit: int
    def __init__(self, plan: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("request", "last_rank")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    LAST_RANK_FIELD_NUMBER: _ClassVar[int]
    request: int
    last_rank: int
    def __init__(self, request: _Optional[int] = ..., last_rank: _Optional[int] = ...) -> None: ...

class ProcessSetReady(_message.Message):
    __slots__ = ("request", "process_set")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SET_FIELD_NUMBER: _ClassVar[int]
    request: int
    process_set: ProcessSet
    def __init__(self, request: _Optional[int] = ..., process_set: _Optional[_Union[ProcessSet, _Mapping]] = ...) -> None: ...

class ProcessSetRemoved(_message.Message):
    __slots__ = ("request", "id")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    request: int
    id: int
    def __init__(self, request: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class EpochEnded(_message.Message):
    __slots__ = ("epoch", "error")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    error: Error
    def __init__(self, epoch: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...
