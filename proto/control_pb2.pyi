from horovod.proto import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentReport(_message.Message):
    __slots__ = ("epoch", "register", "rank_hello", "announcements", "held", "plan_retired", "join_requested", "join_quiet", "set_add_requested", "set_remove_requested", "rank_left", "rank_started", "rank_exited", "observation", "peer_lost", "presented", "round_trips", "guests")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    RANK_HELLO_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENTS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PLAN_RETIRED_FIELD_NUMBER: _ClassVar[int]
    JOIN_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    JOIN_QUIET_FIELD_NUMBER: _ClassVar[int]
    SET_ADD_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    SET_REMOVE_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    RANK_LEFT_FIELD_NUMBER: _ClassVar[int]
    RANK_STARTED_FIELD_NUMBER: _ClassVar[int]
    RANK_EXITED_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    PEER_LOST_FIELD_NUMBER: _ClassVar[int]
    PRESENTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIPS_FIELD_NUMBER: _ClassVar[int]
    GUESTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    register: Register
    rank_hello: RankHello
    announcements: Announcements
    held: Held
    plan_retired: PlanRetired
    join_requested: JoinRequested
    join_quiet: JoinQuiet
    set_add_requested: SetAddRequested
    set_remove_requested: SetRemoveRequested
    rank_left: RankLeft
    rank_started: RankStarted
    rank_exited: RankExited
    observation: Observation
    peer_lost: PeerLost
    presented: Presented
    round_trips: RoundTrips
    guests: Guests
    def __init__(self, epoch: _Optional[int] = ..., register: _Optional[_Union[Register, _Mapping]] = ..., rank_hello: _Optional[_Union[RankHello, _Mapping]] = ..., announcements: _Optional[_Union[Announcements, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., plan_retired: _Optional[_Union[PlanRetired, _Mapping]] = ..., join_requested: _Optional[_Union[JoinRequested, _Mapping]] = ..., join_quiet: _Optional[_Union[JoinQuiet, _Mapping]] = ..., set_add_requested: _Optional[_Union[SetAddRequested, _Mapping]] = ..., set_remove_requested: _Optional[_Union[SetRemoveRequested, _Mapping]] = ..., rank_left: _Optional[_Union[RankLeft, _Mapping]] = ..., rank_started: _Optional[_Union[RankStarted, _Mapping]] = ..., rank_exited: _Optional[_Union[RankExited, _Mapping]] = ..., observation: _Optional[_Union[Observation, _Mapping]] = ..., peer_lost: _Optional[_Union[PeerLost, _Mapping]] = ..., presented: _Optional[_Union[Presented, _Mapping]] = ..., round_trips: _Optional[_Union[RoundTrips, _Mapping]] = ..., guests: _Optional[_Union[Guests, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("agent", "host", "slots", "labels", "addresses", "plane", "presents")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AGENT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    PRESENTS_FIELD_NUMBER: _ClassVar[int]
    agent: str
    host: str
    slots: int
    labels: _containers.ScalarMap[str, str]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    plane: str
    presents: bool
    def __init__(self, agent: _Optional[str] = ..., host: _Optional[str] = ..., slots: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., addresses: _Optional[_Iterable[str]] = ..., plane: _Optional[str] = ..., presents: bool = ...) -> None: ...

class RankHello(_message.Message):
    __slots__ = ("rank", "generation", "pid", "process_sets", "dynamic_process_sets", "extended_join")
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SETS_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_PROCESS_SETS_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_JOIN_FIELD_NUMBER: _ClassVar[int]
    rank: int
    generation: int
    pid: int
    process_sets: _containers.RepeatedCompositeFieldContainer[_worker_pb2.ProcessSet]
    dynamic_process_sets: bool
    extended_join: bool
    def __init__(self, rank: _Optional[int] = ..., generation: _Optional[int] = ..., pid: _Optional[int] = ..., process_sets: _Optional[_Iterable[_Union[_worker_pb2.ProcessSet, _Mapping]]] = ..., dynamic_process_sets: bool = ..., extended_join: bool = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("rank", "request", "signature", "contested_plan", "contested_round", "no_room_bytes", "input_gone")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CONTESTED_PLAN_FIELD_NUMBER: _ClassVar[int]
    CONTESTED_ROUND_FIELD_NUMBER: _ClassVar[int]
    NO_ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUT_GONE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    request: int
    signature: _worker_pb2.Signature
    contested_plan: int
    contested_round: int
    no_room_bytes: int
    input_gone: bool
    def __init__(self, rank: _Optional[int] = ..., request: _Optional[int] = ..., signature: _Optional[_Union[_worker_pb2.Signature, _Mapping]] = ..., contested_plan: _Optional[int] = ..., contested_round: _Optional[int] = ..., no_room_bytes: _Optional[int] = ..., input_gone: bool = ...) -> None: ...

class Announcements(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Announcement]
    def __init__(self, items: _Optional[_Iterable[_Union[Announcement, _Mapping]]] = ...) -> None: ...

class RankCount(_message.Message):
    __slots__ = ("rank", "count")
    RANK_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    count: int
    def __init__(self, rank: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("plan", "arrivals")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    arrivals: _containers.RepeatedCompositeFieldContainer[RankCount]
    def __init__(self, plan: _Optional[int] = ..., arrivals: _Optional[_Iterable[_Union[RankCount, _Mapping]]] = ...) -> None: ...

class PlanRetired(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: int
    def __init__(self, plan: _Optional[int] = ...) -> None: ...

class JoinRequested(_message.Message):
    __slots__ = ("rank", "request")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    rank: int
    request: int
    def __init__(self, rank: _Optional[int] = ..., request: _Optional[int] = ...) -> None: ...

class JoinQuiet(_message.Message):
    __slots__ = ("plans",)
    PLANS_FIELD_NUMBER: _ClassVar[int]
    plans: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, plans: _Optional[_Iterable[int]] = ...) -> None: ...

class SetAddRequested(_message.Message):
    __slots__ = ("rank", "request", "ranks")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    request: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rank: _Optional[int] = ..., request: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class SetRemoveRequested(_message.Message):
    __slots__ = ("rank", "request", "id")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    rank: int
    request: int
    id: int
    def __init__(self, rank: _Optional[int] = ..., request: _Optional[int] = ..., id: _Optional[int] = ...) -> None: ...

class RankLeft(_message.Message):
    __slots__ = ("rank", "generation", "reason")
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    generation: int
    reason: str
    def __init__(self, rank: _Optional[int] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RankStarted(_message.Message):
    __slots__ = ("rank", "pid")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class RankExited(_message.Message):
    __slots__ = ("rank", "pid", "code", "signal", "left", "last_lines", "start_error")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    START_ERROR_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    code: int
    signal: int
    left: bool
    last_lines: str
    start_error: str
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., code: _Optional[int] = ..., signal: _Optional[int] = ..., left: bool = ..., last_lines: _Optional[str] = ..., start_error: _Optional[str] = ...) -> None: ...

class OpenRound(_message.Message):
    __slots__ = ("plan", "round", "age_s", "missing", "holders", "travels")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    TRAVELS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    round: int
    age_s: float
    missing: _containers.RepeatedScalarFieldContainer[int]
    holders: _containers.RepeatedScalarFieldContainer[int]
    travels: bool
    def __init__(self, plan: _Optional[int] = ..., round: _Optional[int] = ..., age_s: _Optional[float] = ..., missing: _Optional[_Iterable[int]] = ..., holders: _Optional[_Iterable[int]] = ..., travels: bool = ...) -> None: ...

class RankState(_message.Message):
    __slots__ = ("rank", "submits", "blocked", "blocked_request", "blocked_s", "process_state")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_S_FIELD_NUMBER: _ClassVar[int]
    PROCESS_STATE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    submits: int
    blocked: int
    blocked_request: int
    blocked_s: float
    process_state: str
    def __init__(self, rank: _Optional[int] = ..., submits: _Optional[int] = ..., blocked: _Optional[int] = ..., blocked_request: _Optional[int] = ..., blocked_s: _Optional[float] = ..., process_state: _Optional[str] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("rounds", "ranks", "plans_used", "blocked_on")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    PLANS_USED_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_ON_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[OpenRound]
    ranks: _containers.RepeatedCompositeFieldContainer[RankState]
    plans_used: _containers.RepeatedScalarFieldContainer[int]
    blocked_on: _containers.RepeatedCompositeFieldContainer[BlockedOn]
    def __init__(self, rounds: _Optional[_Iterable[_Union[OpenRound, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[RankState, _Mapping]]] = ..., plans_used: _Optional[_Iterable[int]] = ..., blocked_on: _Optional[_Iterable[_Union[BlockedOn, _Mapping]]] = ...) -> None: ...

class BlockedOn(_message.Message):
    __slots__ = ("rank", "plan", "round", "name", "call")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    rank: int
    plan: int
    round: int
    name: str
    call: int
    def __init__(self, rank: _Optional[int] = ..., plan: _Optional[int] = ..., round: _Optional[int] = ..., name: _Optional[str] = ..., call: _Optional[int] = ...) -> None: ...

class PeerLost(_message.Message):
    __slots__ = ("agent", "text")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    agent: str
    text: str
    def __init__(self, agent: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Guests(_message.Message):
    __slots__ = ("items", "resting")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Guest]
    resting: int
    def __init__(self, items: _Optional[_Iterable[_Union[Guest, _Mapping]]] = ..., resting: _Optional[int] = ...) -> None: ...

class Guest(_message.Message):
    __slots__ = ("id", "pid", "rank", "size")
    ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    id: int
    pid: int
    rank: int
    size: int
    def __init__(self, id: _Optional[int] = ..., pid: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class RoundTrips(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[RoundTrip]
    def __init__(self, items: _Optional[_Iterable[_Union[RoundTrip, _Mapping]]] = ...) -> None: ...

class RoundTrip(_message.Message):
    __slots__ = ("agent", "seconds")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    agent: str
    seconds: float
    def __init__(self, agent: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Presented(_message.Message):
    __slots__ = ("last_job", "start", "ranks", "last_epoch", "epoch_start", "epoch", "peer_lost", "finished")
    LAST_JOB_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_START_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEER_LOST_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    last_job: str
    start: _containers.RepeatedCompositeFieldContainer[StartRanks]
    ranks: _containers.RepeatedCompositeFieldContainer[RankPresented]
    last_epoch: int
    epoch_start: _containers.RepeatedCompositeFieldContainer[EpochStart]
    epoch: _containers.RepeatedCompositeFieldContainer[EpochPresented]
    peer_lost: _containers.RepeatedCompositeFieldContainer[PeerLost]
    finished: _containers.RepeatedCompositeFieldContainer[FinishedJob]
    def __init__(self, last_job: _Optional[str] = ..., start: _Optional[_Iterable[_Union[StartRanks, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[RankPresented, _Mapping]]] = ..., last_epoch: _Optional[int] = ..., epoch_start: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ..., epoch: _Optional[_Iterable[_Union[EpochPresented, _Mapping]]] = ..., peer_lost: _Optional[_Iterable[_Union[PeerLost, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[FinishedJob, _Mapping]]] = ...) -> None: ...

class RankPresented(_message.Message):
    __slots__ = ("rank", "pid", "epoch", "hello", "left_epoch", "left", "left_s", "exited", "exited_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LEFT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    EXITED_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    epoch: int
    hello: _containers.RepeatedCompositeFieldContainer[RankHello]
    left_epoch: int
    left: _containers.RepeatedCompositeFieldContainer[RankLeft]
    left_s: float
    exited: _containers.RepeatedCompositeFieldContainer[RankExited]
    exited_s: float
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., epoch: _Optional[int] = ..., hello: _Optional[_Iterable[_Union[RankHello, _Mapping]]] = ..., left_epoch: _Optional[int] = ..., left: _Optional[_Iterable[_Union[RankLeft, _Mapping]]] = ..., left_s: _Optional[float] = ..., exited: _Optional[_Iterable[_Union[RankExited, _Mapping]]] = ..., exited_s: _Optional[float] = ...) -> None: ...

class EpochPresented(_message.Message):
    __slots__ = ("ended", "plans", "highest_plan", "retired", "announcements", "sets", "free_sets", "next_set", "set_changes", "set_answers", "set_calls", "set_counts", "joins", "joins_done", "last_joined", "zero_plans", "refusals")
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_PLAN_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENTS_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    FREE_SETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_SET_FIELD_NUMBER: _ClassVar[int]
    SET_CHANGES_FIELD_NUMBER: _ClassVar[int]
    SET_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    SET_CALLS_FIELD_NUMBER: _ClassVar[int]
    SET_COUNTS_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    JOINS_DONE_FIELD_NUMBER: _ClassVar[int]
    LAST_JOINED_FIELD_NUMBER: _ClassVar[int]
    ZERO_PLANS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    ended: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Error]
    plans: _containers.RepeatedCompositeFieldContainer[PlanPresented]
    highest_plan: int
    retired: _containers.RepeatedCompositeFieldContainer[RetirePlan]
    announcements: _containers.RepeatedCompositeFieldContainer[Announcement]
    sets: _containers.RepeatedCompositeFieldContainer[_worker_pb2.ProcessSet]
    free_sets: _containers.RepeatedScalarFieldContainer[int]
    next_set: int
    set_changes: int
    set_answers: _containers.RepeatedCompositeFieldContainer[SetAnswer]
    set_calls: _containers.RepeatedCompositeFieldContainer[SetCallPresented]
    set_counts: _containers.RepeatedCompositeFieldContainer[RankCount]
    joins: _containers.RepeatedCompositeFieldContainer[RankRequest]
    joins_done: int
    last_joined: int
    zero_plans: _containers.RepeatedScalarFieldContainer[int]
    refusals: _containers.RepeatedCompositeFieldContainer[RefusalPresented]
    def __init__(self, ended: _Optional[_Iterable[_Union[_worker_pb2.Error, _Mapping]]] = ..., plans: _Optional[_Iterable[_Union[PlanPresented, _Mapping]]] = ..., highest_plan: _Optional[int] = ..., retired: _Optional[_Iterable[_Union[RetirePlan, _Mapping]]] = ..., announcements: _Optional[_Iterable[_Union[Announcement, _Mapping]]] = ..., sets: _Optional[_Iterable[_Union[_worker_pb2.ProcessSet, _Mapping]]] = ..., free_sets: _Optional[_Iterable[int]] = ..., next_set: _Optional[int] = ..., set_changes: _Optional[int] = ..., set_answers: _Optional[_Iterable[_Union[SetAnswer, _Mapping]]] = ..., set_calls: _Optional[_Iterable[_Union[SetCallPresented, _Mapping]]] = ..., set_counts: _Optional[_Iterable[_Union[RankCount, _Mapping]]] = ..., joins: _Optional[_Iterable[_Union[RankRequest, _Mapping]]] = ..., joins_done: _Optional[int] = ..., last_joined: _Optional[int] = ..., zero_plans: _Optional[_Iterable[int]] = ..., refusals: _Optional[_Iterable[_Union[RefusalPresented, _Mapping]]] = ...) -> None: ...

class PlanPresented(_message.Message):
    __slots__ = ("plan", "signature", "members", "held", "limit", "contest")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONTEST_FIELD_NUMBER: _ClassVar[int]
    plan: int
    signature: _worker_pb2.Signature
    members: _containers.RepeatedScalarFieldContainer[int]
    held: bool
    limit: int
    contest: int
    def __init__(self, plan: _Optional[int] = ..., signature: _Optional[_Union[_worker_pb2.Signature, _Mapping]] = ..., members: _Optional[_Iterable[int]] = ..., held: bool = ..., limit: _Optional[int] = ..., contest: _Optional[int] = ...) -> None: ...

class SetAnswer(_message.Message):
    __slots__ = ("number", "added", "removed", "refused")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    number: int
    added: _containers.RepeatedCompositeFieldContainer[_worker_pb2.ProcessSet]
    removed: _containers.RepeatedScalarFieldContainer[int]
    refused: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Error]
    def __init__(self, number: _Optional[int] = ..., added: _Optional[_Iterable[_Union[_worker_pb2.ProcessSet, _Mapping]]] = ..., removed: _Optional[_Iterable[int]] = ..., refused: _Optional[_Iterable[_Union[_worker_pb2.Error, _Mapping]]] = ...) -> None: ...

class SetCallPresented(_message.Message):
    __slots__ = ("rank", "request", "number", "ranks", "remove")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    request: int
    number: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    remove: int
    def __init__(self, rank: _Optional[int] = ..., request: _Optional[int] = ..., number: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., remove: _Optional[int] = ...) -> None: ...

class RefusalPresented(_message.Message):
    __slots__ = ("id", "process_set", "name", "error", "told", "joins_done")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    JOINS_DONE_FIELD_NUMBER: _ClassVar[int]
    id: int
    process_set: int
    name: str
    error: _worker_pb2.Error
    told: _containers.RepeatedScalarFieldContainer[int]
    joins_done: int
    def __init__(self, id: _Optional[int] = ..., process_set: _Optional[int] = ..., name: _Optional[str] = ..., error: _Optional[_Union[_worker_pb2.Error, _Mapping]] = ..., told: _Optional[_Iterable[int]] = ..., joins_done: _Optional[int] = ...) -> None: ...

class FinishedJob(_message.Message):
    __slots__ = ("id", "code", "text", "rank", "host", "pid", "signal", "last_lines", "has_output", "job", "started")
    ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    HAS_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    id: str
    code: int
    text: str
    rank: int
    host: str
    pid: int
    signal: int
    last_lines: str
    has_output: bool
    job: int
    started: int
    def __init__(self, id: _Optional[str] = ..., code: _Optional[int] = ..., text: _Optional[str] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., signal: _Optional[int] = ..., last_lines: _Optional[str] = ..., has_output: bool = ..., job: _Optional[int] = ..., started: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("epoch", "registered", "start_ranks", "stop_ranks", "epoch_start", "rank_rejected", "plan_made", "refusal", "hold", "retire_plan", "joined_ranks", "all_joined", "join_done", "set_added", "set_removed", "end_epoch", "warn", "job_finished", "measure_round_trips", "gathering", "guest_rejected")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    START_RANKS_FIELD_NUMBER: _ClassVar[int]
    STOP_RANKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_START_FIELD_NUMBER: _ClassVar[int]
    RANK_REJECTED_FIELD_NUMBER: _ClassVar[int]
    PLAN_MADE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    RETIRE_PLAN_FIELD_NUMBER: _ClassVar[int]
    JOINED_RANKS_FIELD_NUMBER: _ClassVar[int]
    ALL_JOINED_FIELD_NUMBER: _ClassVar[int]
    JOIN_DONE_FIELD_NUMBER: _ClassVar[int]
    SET_ADDED_FIELD_NUMBER: _ClassVar[int]
    SET_REMOVED_FIELD_NUMBER: _ClassVar[int]
    END_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WARN_FIELD_NUMBER: _ClassVar[int]
    JOB_FINISHED_FIELD_NUMBER: _ClassVar[int]
    MEASURE_ROUND_TRIPS_FIELD_NUMBER: _ClassVar[int]
    GATHERING_FIELD_NUMBER: _ClassVar[int]
    GUEST_REJECTED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    registered: Registered
    start_ranks: StartRanks
    stop_ranks: StopRanks
    epoch_start: EpochStart
    rank_rejected: RankRejected
    plan_made: PlanMade
    refusal: Refusal
    hold: Hold
    retire_plan: RetirePlan
    joined_ranks: JoinedRanks
    all_joined: AllJoined
    join_done: JoinDone
    set_added: SetAdded
    set_removed: SetRemoved
    end_epoch: EndEpoch
    warn: Warn
    job_finished: JobFinished
    measure_round_trips: MeasureRoundTrips
    gathering: Gathering
    guest_rejected: GuestRejected
    def __init__(self, epoch: _Optional[int] = ..., registered: _Optional[_Union[Registered, _Mapping]] = ..., start_ranks: _Optional[_Union[StartRanks, _Mapping]] = ..., stop_ranks: _Optional[_Union[StopRanks, _Mapping]] = ..., epoch_start: _Optional[_Union[EpochStart, _Mapping]] = ..., rank_rejected: _Optional[_Union[RankRejected, _Mapping]] = ..., plan_made: _Optional[_Union[PlanMade, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., retire_plan: _Optional[_Union[RetirePlan, _Mapping]] = ..., joined_ranks: _Optional[_Union[JoinedRanks, _Mapping]] = ..., all_joined: _Optional[_Union[AllJoined, _Mapping]] = ..., join_done: _Optional[_Union[JoinDone, _Mapping]] = ..., set_added: _Optional[_Union[SetAdded, _Mapping]] = ..., set_removed: _Optional[_Union[SetRemoved, _Mapping]] = ..., end_epoch: _Optional[_Union[EndEpoch, _Mapping]] = ..., warn: _Optional[_Union[Warn, _Mapping]] = ..., job_finished: _Optional[_Union[JobFinished, _Mapping]] = ..., measure_round_trips: _Optional[_Union[MeasureRoundTrips, _Mapping]] = ..., gathering: _Optional[_Union[Gathering, _Mapping]] = ..., guest_rejected: _Optional[_Union[GuestRejected, _Mapping]] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class RankPlaces(_message.Message):
    __slots__ = ("agents", "hosts", "agent", "rank", "local_rank", "local_size", "cross_rank", "cross_size")
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    CROSS_RANK_FIELD_NUMBER: _ClassVar[int]
    CROSS_SIZE_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedScalarFieldContainer[str]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    agent: _containers.RepeatedScalarFieldContainer[int]
    rank: _containers.RepeatedScalarFieldContainer[int]
    local_rank: _containers.RepeatedScalarFieldContainer[int]
    local_size: _containers.RepeatedScalarFieldContainer[int]
    cross_rank: _containers.RepeatedScalarFieldContainer[int]
    cross_size: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, agents: _Optional[_Iterable[str]] = ..., hosts: _Optional[_Iterable[str]] = ..., agent: _Optional[_Iterable[int]] = ..., rank: _Optional[_Iterable[int]] = ..., local_rank: _Optional[_Iterable[int]] = ..., local_size: _Optional[_Iterable[int]] = ..., cross_rank: _Optional[_Iterable[int]] = ..., cross_size: _Optional[_Iterable[int]] = ...) -> None: ...

class Variable(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class StartRanks(_message.Message):
    __slots__ = ("command", "environment", "directory", "size", "places", "job", "guests", "id", "started", "launcher", "limits")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    GUESTS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    command: _containers.RepeatedScalarFieldContainer[bytes]
    environment: _containers.RepeatedCompositeFieldContainer[Variable]
    directory: bytes
    size: int
    places: RankPlaces
    job: int
    guests: _containers.RepeatedScalarFieldContainer[int]
    id: str
    started: int
    launcher: str
    limits: JobLimits
    def __init__(self, command: _Optional[_Iterable[bytes]] = ..., environment: _Optional[_Iterable[_Union[Variable, _Mapping]]] = ..., directory: _Optional[bytes] = ..., size: _Optional[int] = ..., places: _Optional[_Union[RankPlaces, _Mapping]] = ..., job: _Optional[int] = ..., guests: _Optional[_Iterable[int]] = ..., id: _Optional[str] = ..., started: _Optional[int] = ..., launcher: _Optional[str] = ..., limits: _Optional[_Union[JobLimits, _Mapping]] = ...) -> None: ...

class StopRanks(_message.Message):
    __slots__ = ("reason", "grace_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    reason: str
    grace_s: float
    def __init__(self, reason: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("agent", "host", "addresses")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    agent: str
    host: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agent: _Optional[str] = ..., host: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("places", "process_sets", "ring", "key")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SETS_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    places: RankPlaces
    process_sets: _containers.RepeatedCompositeFieldContainer[_worker_pb2.ProcessSet]
    ring: _containers.RepeatedCompositeFieldContainer[Host]
    key: bytes
    def __init__(self, places: _Optional[_Union[RankPlaces, _Mapping]] = ..., process_sets: _Optional[_Iterable[_Union[_worker_pb2.ProcessSet, _Mapping]]] = ..., ring: _Optional[_Iterable[_Union[Host, _Mapping]]] = ..., key: _Optional[bytes] = ...) -> None: ...

class MeasureRoundTrips(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[Host]
    def __init__(self, peers: _Optional[_Iterable[_Union[Host, _Mapping]]] = ...) -> None: ...

class RankRejected(_message.Message):
    __slots__ = ("rank", "reason", "retry")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    rank: int
    reason: str
    retry: bool
    def __init__(self, rank: _Optional[int] = ..., reason: _Optional[str] = ..., retry: bool = ...) -> None: ...

class RankRequest(_message.Message):
    __slots__ = ("rank", "request")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    rank: int
    request: int
    def __init__(self, rank: _Optional[int] = ..., request: _Optional[int] = ...) -> None: ...

class PlanMade(_message.Message):
    __slots__ = ("plan", "signature", "requests")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    signature: _worker_pb2.Signature
    requests: _containers.RepeatedCompositeFieldContainer[RankRequest]
    def __init__(self, plan: _Optional[int] = ..., signature: _Optional[_Union[_worker_pb2.Signature, _Mapping]] = ..., requests: _Optional[_Iterable[_Union[RankRequest, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("requests", "error", "id")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RankRequest]
    error: _worker_pb2.Error
    id: int
    def __init__(self, requests: _Optional[_Iterable[_Union[RankRequest, _Mapping]]] = ..., error: _Optional[_Union[_worker_pb2.Error, _Mapping]] = ..., id: _Optional[int] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: int
    def __init__(self, plan: _Optional[int] = ...) -> None: ...

class RetirePlan(_message.Message):
    __slots__ = ("plan", "limit")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    plan: int
    limit: int
    def __init__(self, plan: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class JoinedRanks(_message.Message):
    __slots__ = ("ranks", "anybody", "extended")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ANYBODY_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    anybody: bool
    extended: bool
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., anybody: bool = ..., extended: bool = ...) -> None: ...

class AllJoined(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinDone(_message.Message):
    __slots__ = ("last_rank", "requests")
    LAST_RANK_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    last_rank: int
    requests: _containers.RepeatedCompositeFieldContainer[RankRequest]
    def __init__(self, last_rank: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[RankRequest, _Mapping]]] = ...) -> None: ...

class SetAdded(_message.Message):
    __slots__ = ("process_set", "requests")
    PROCESS_SET_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    process_set: _worker_pb2.ProcessSet
    requests: _containers.RepeatedCompositeFieldContainer[RankRequest]
    def __init__(self, process_set: _Optional[_Union[_worker_pb2.ProcessSet, _Mapping]] = ..., requests: _Optional[_Iterable[_Union[RankRequest, _Mapping]]] = ...) -> None: ...

class SetRemoved(_message.Message):
    __slots__ = ("id", "requests")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    requests: _containers.RepeatedCompositeFieldContainer[RankRequest]
    def __init__(self, id: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[RankRequest, _Mapping]]] = ...) -> None: ...

class EndEpoch(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _worker_pb2.Error
    def __init__(self, error: _Optional[_Union[_worker_pb2.Error, _Mapping]] = ...) -> None: ...

class Warn(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Gathering(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class GuestRejected(_message.Message):
    __slots__ = ("guest", "reason")
    GUEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    guest: int
    reason: str
    def __init__(self, guest: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class JobFinished(_message.Message):
    __slots__ = ("code", "text", "rank", "host", "pid", "signal", "last_lines")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    code: int
    text: str
    rank: int
    host: str
    pid: int
    signal: int
    last_lines: str
    def __init__(self, code: _Optional[int] = ..., text: _Optional[str] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., signal: _Optional[int] = ..., last_lines: _Optional[str] = ...) -> None: ...

class AgentFrame(_message.Message):
    __slots__ = ("seq", "ack", "hello", "report", "heartbeat", "goodbye")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    ack: int
    hello: SessionHello
    report: AgentReport
    heartbeat: Heartbeat
    goodbye: Goodbye
    def __init__(self, seq: _Optional[int] = ..., ack: _Optional[int] = ..., hello: _Optional[_Union[SessionHello, _Mapping]] = ..., report: _Optional[_Union[AgentReport, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class CoordinatorFrame(_message.Message):
    __slots__ = ("seq", "ack", "welcome", "orders", "heartbeat", "refused")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    seq: int
    ack: int
    welcome: SessionWelcome
    orders: Orders
    heartbeat: Heartbeat
    refused: SessionRefused
    def __init__(self, seq: _Optional[int] = ..., ack: _Optional[int] = ..., welcome: _Optional[_Union[SessionWelcome, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., refused: _Optional[_Union[SessionRefused, _Mapping]] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Order]
    def __init__(self, items: _Optional[_Iterable[_Union[Order, _Mapping]]] = ...) -> None: ...

class SessionHello(_message.Message):
    __slots__ = ("protocol", "version", "register", "instance", "incarnation", "received")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    register: Register
    instance: str
    incarnation: int
    received: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., register: _Optional[_Union[Register, _Mapping]] = ..., instance: _Optional[str] = ..., incarnation: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class SessionWelcome(_message.Message):
    __slots__ = ("incarnation", "resumed", "received", "heartbeat_s", "peer_timeout_s")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    PEER_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    resumed: bool
    received: int
    heartbeat_s: float
    peer_timeout_s: float
    def __init__(self, incarnation: _Optional[int] = ..., resumed: bool = ..., received: _Optional[int] = ..., heartbeat_s: _Optional[float] = ..., peer_timeout_s: _Optional[float] = ...) -> None: ...

class SessionRefused(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class OutputFrame(_message.Message):
    __slots__ = ("seq", "hello", "data", "notice", "end")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    seq: int
    hello: OutputHello
    data: RankOutput
    notice: str
    end: OutputEnd
    def __init__(self, seq: _Optional[int] = ..., hello: _Optional[_Union[OutputHello, _Mapping]] = ..., data: _Optional[_Union[RankOutput, _Mapping]] = ..., notice: _Optional[str] = ..., end: _Optional[_Union[OutputEnd, _Mapping]] = ...) -> None: ...

class OutputHello(_message.Message):
    __slots__ = ("protocol", "agent", "instance", "job", "incarnation")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    agent: str
    instance: str
    job: int
    incarnation: int
    def __init__(self, protocol: _Optional[int] = ..., agent: _Optional[str] = ..., instance: _Optional[str] = ..., job: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class RankOutput(_message.Message):
    __slots__ = ("rank", "stream", "data")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    rank: int
    stream: int
    data: bytes
    def __init__(self, rank: _Optional[int] = ..., stream: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class OutputEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OutputWord(_message.Message):
    __slots__ = ("ack", "closed", "over")
    ACK_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ack: int
    closed: _containers.RepeatedScalarFieldContainer[int]
    over: bool
    def __init__(self, ack: _Optional[int] = ..., closed: _Optional[_Iterable[int]] = ..., over: bool = ...) -> None: ...

class JobFrame(_message.Message):
    __slots__ = ("submit", "cancel", "output_closed", "taken")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_CLOSED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    submit: JobSubmit
    cancel: JobCancel
    output_closed: OutputClosed
    taken: OutputTaken
    def __init__(self, submit: _Optional[_Union[JobSubmit, _Mapping]] = ..., cancel: _Optional[_Union[JobCancel, _Mapping]] = ..., output_closed: _Optional[_Union[OutputClosed, _Mapping]] = ..., taken: _Optional[_Union[OutputTaken, _Mapping]] = ...) -> None: ...

class JobSubmit(_message.Message):
    __slots__ = ("protocol", "version", "size", "command", "environment", "directory", "wait", "limits", "launcher", "attach", "id", "again", "taken")
    class TakenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    size: int
    command: _containers.RepeatedScalarFieldContainer[bytes]
    environment: _containers.RepeatedCompositeFieldContainer[Variable]
    directory: bytes
    wait: bool
    limits: JobLimits
    launcher: str
    attach: bool
    id: str
    again: bool
    taken: _containers.ScalarMap[str, int]
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., size: _Optional[int] = ..., command: _Optional[_Iterable[bytes]] = ..., environment: _Optional[_Iterable[_Union[Variable, _Mapping]]] = ..., directory: _Optional[bytes] = ..., wait: bool = ..., limits: _Optional[_Union[JobLimits, _Mapping]] = ..., launcher: _Optional[str] = ..., attach: bool = ..., id: _Optional[str] = ..., again: bool = ..., taken: _Optional[_Mapping[str, int]] = ...) -> None: ...

class OutputTaken(_message.Message):
    __slots__ = ("taken",)
    class TakenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    taken: _containers.ScalarMap[str, int]
    def __init__(self, taken: _Optional[_Mapping[str, int]] = ...) -> None: ...

class JobLimits(_message.Message):
    __slots__ = ("stall_check_s", "stall_shutdown_s", "deadlock_grace_s", "cache_capacity", "start_warning_s", "start_timeout_s", "deterministic")
    STALL_CHECK_S_FIELD_NUMBER: _ClassVar[int]
    STALL_SHUTDOWN_S_FIELD_NUMBER: _ClassVar[int]
    DEADLOCK_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    CACHE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    START_WARNING_S_FIELD_NUMBER: _ClassVar[int]
    START_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    stall_check_s: float
    stall_shutdown_s: float
    deadlock_grace_s: float
    cache_capacity: int
    start_warning_s: float
    start_timeout_s: float
    deterministic: bool
    def __init__(self, stall_check_s: _Optional[float] = ..., stall_shutdown_s: _Optional[float] = ..., deadlock_grace_s: _Optional[float] = ..., cache_capacity: _Optional[int] = ..., start_warning_s: _Optional[float] = ..., start_timeout_s: _Optional[float] = ..., deterministic: bool = ...) -> None: ...

class JobCancel(_message.Message):
    __slots__ = ("code", "reason", "at_once")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    at_once: bool
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., at_once: bool = ...) -> None: ...

class OutputClosed(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: int
    def __init__(self, stream: _Optional[int] = ...) -> None: ...

class JobUpdate(_message.Message):
    __slots__ = ("accepted", "output", "notice", "ended", "refused", "agent", "seq")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    accepted: JobAccepted
    output: RankOutput
    notice: JobNotice
    ended: JobEnded
    refused: JobRefused
    agent: str
    seq: int
    def __init__(self, accepted: _Optional[_Union[JobAccepted, _Mapping]] = ..., output: _Optional[_Union[RankOutput, _Mapping]] = ..., notice: _Optional[_Union[JobNotice, _Mapping]] = ..., ended: _Optional[_Union[JobEnded, _Mapping]] = ..., refused: _Optional[_Union[JobRefused, _Mapping]] = ..., agent: _Optional[str] = ..., seq: _Optional[int] = ...) -> None: ...

class JobAccepted(_message.Message):
    __slots__ = ("places",)
    PLACES_FIELD_NUMBER: _ClassVar[int]
    places: RankPlaces
    def __init__(self, places: _Optional[_Union[RankPlaces, _Mapping]] = ...) -> None: ...

class JobNotice(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class JobEnded(_message.Message):
    __slots__ = ("code", "text", "rank", "host", "pid", "signal", "last_lines")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    code: int
    text: str
    rank: int
    host: str
    pid: int
    signal: int
    last_lines: str
    def __init__(self, code: _Optional[int] = ..., text: _Optional[str] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., signal: _Optional[int] = ..., last_lines: _Optional[str] = ...) -> None: ...

class JobRefused(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...
