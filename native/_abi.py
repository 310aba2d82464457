"""Loads libhvd_native.so and gives every function of hvd.h its types.  Pointers are integers (c_void_p)."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path

ABI_VERSION = 5
_LIBRARY = "libhvd_native.so"


class CPlanSpec(Structure):
    """hvd_plan_spec."""

    _fields_ = [
        ("plan_id", c_uint64),
        ("kind", c_uint32),
        ("dtype", c_uint32),
        ("op", c_uint32),
        ("prescale", c_double),
        ("postscale", c_double),
        ("bytes", c_uint64),
        ("depth", c_uint32),
        ("n_members", c_uint32),
        ("members", POINTER(c_uint32)),
        ("flags", c_uint32),
    ]


class CRoundInfo(Structure):
    """hvd_round_info."""

    _fields_ = [
        ("plan_id", c_uint64),
        ("offset", c_uint64),
        ("round", c_uint64),
        ("age_ns", c_uint64),
        ("n_members", c_uint32),
        ("n_arrived", c_uint32),
        ("phase", c_uint32),
    ]


class CRankInfo(Structure):
    """hvd_rank_info."""

    _fields_ = [
        ("submits", c_uint64),
        ("blocked", c_uint32),
        ("blocked_tag", c_uint64),
        ("blocked_ns", c_uint64),
        ("claims", c_uint32),
    ]


class CArenaInfo(Structure):
    """hvd_arena_info."""

    _fields_ = [("used_bytes", c_uint64), ("free_touched_bytes", c_uint64), ("resident_bytes", c_uint64)]


class CSegment(Structure):
    """hvd_segment."""

    _fields_ = [("input", c_void_p), ("output", c_void_p), ("bytes", c_uint64)]


class CCopy(Structure):
    """hvd_copy."""

    _fields_ = [("member", c_uint32), ("source_offset", c_uint64), ("output", c_void_p), ("bytes", c_uint64)]


class CSpan(Structure):
    """hvd_span."""

    _fields_ = [("offset", c_uint64), ("bytes", c_uint64)]


class CNetSpec(Structure):
    """hvd_net_spec."""

    _fields_ = [
        ("n_hosts", c_uint32),
        ("my_host", c_uint32),
        ("lanes", c_uint32),
        ("eager_bytes", c_uint64),
        ("ping_ms", c_uint32),
        ("silent_ms", c_uint32),
        ("algorithm", c_uint32),
    ]


class CNetEvent(Structure):
    """hvd_net_event."""

    _fields_ = [
        ("kind", c_uint32),
        ("host", c_uint32),
        ("plan_id", c_uint64),
        ("round", c_uint64),
        ("text", c_char * 200),
    ]


class CNetInfo(Structure):
    """hvd_net_info."""

    _fields_ = [
        ("rounds_direct", c_uint64),
        ("rounds_doubling", c_uint64),
        ("rounds_ring", c_uint64),
        ("rounds_pull", c_uint64),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("frames_sent", c_uint64),
        ("frames_received", c_uint64),
        ("writes", c_uint64),
        ("reads", c_uint64),
        ("sleeps", c_uint64),
        ("parked_bytes", c_uint64),
        ("waiting_frames", c_uint64),
    ]


class CNetPeerInfo(Structure):
    """hvd_net_peer_info."""

    _fields_ = [
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("tokens", c_uint64),
        ("owed", c_uint64),
        ("silent_ms", c_uint64),
        ("retransmits", c_uint64),
        ("lost", c_uint32),
    ]


NET_ALGORITHMS = ("direct", "doubling", "ring", "pull")
NET_STAGES = ("wait", "reduce", "network", "copy")
BUCKETS = 24  # of times, by powers of two
BOARD_STAGES = ("wait", "reduce")


class CBoardTimes(Structure):
    """hvd_board_times."""

    _fields_ = [("counts", c_uint64 * BUCKETS * len(BOARD_STAGES)), ("sum_ns", c_uint64 * len(BOARD_STAGES))]


class CNetTimes(Structure):
    """hvd_net_times."""

    _fields_ = [
        ("counts", c_uint64 * BUCKETS * len(NET_STAGES) * len(NET_ALGORITHMS)),
        ("sum_ns", c_uint64 * len(NET_STAGES) * len(NET_ALGORITHMS)),
    ]


_STATUS = c_int
FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "hvd_abi_version": (c_uint32, []),
    "hvd_reduce": (_STATUS, [c_int, c_int, c_double, c_double, c_void_p, c_void_p, c_uint32, c_uint64]),
    "hvd_dtype_bytes": (c_uint32, [c_int]),
    "hvd_kernel_name": (c_char_p, []),
    "hvd_copy_past_caches": (None, [c_void_p, c_void_p, c_uint64]),
    "hvd_board_create": (_STATUS, [c_uint32, c_uint64, POINTER(c_void_p), POINTER(c_int)]),
    "hvd_board_close": (None, [c_void_p]),
    "hvd_board_plan_add": (_STATUS, [c_void_p, POINTER(CPlanSpec), POINTER(c_uint64)]),
    "hvd_board_plan_remove": (_STATUS, [c_void_p, c_uint64]),
    "hvd_board_plan_limit": (_STATUS, [c_void_p, c_uint64, c_uint64]),
    "hvd_board_plan_arrivals": (_STATUS, [c_void_p, c_uint64, POINTER(c_uint64)]),
    "hvd_board_plan_arrive_for": (_STATUS, [c_void_p, c_uint64, c_uint32, c_int, POINTER(c_uint64)]),
    "hvd_board_watch_arrivals": (_STATUS, [c_void_p, c_int]),
    "hvd_board_wait_bell": (_STATUS, [c_void_p, c_uint32]),
    "hvd_board_ring_agent": (None, [c_void_p]),
    "hvd_board_fail": (_STATUS, [c_void_p, _STATUS, c_char_p]),
    "hvd_board_rank_dead": (_STATUS, [c_void_p, c_uint32]),
    "hvd_board_scan": (_STATUS, [c_void_p, POINTER(CRoundInfo), c_uint32, POINTER(c_uint32)]),
    "hvd_board_round_members": (_STATUS, [c_void_p, c_uint64, c_uint64, POINTER(c_uint8), POINTER(c_uint8)]),
    "hvd_board_rank_info": (_STATUS, [c_void_p, c_uint32, POINTER(CRankInfo)]),
    "hvd_board_time_stat": (_STATUS, [c_void_p, POINTER(CBoardTimes)]),
    "hvd_board_help": (_STATUS, [c_void_p, POINTER(c_int), c_uint32, c_uint32]),
    "hvd_arena_create": (_STATUS, [c_uint64, POINTER(c_void_p)]),
    "hvd_arena_fd": (c_int, [c_void_p]),
    "hvd_arena_base": (c_void_p, [c_void_p]),
    "hvd_arena_alloc": (c_void_p, [c_void_p, c_uint64]),
    "hvd_arena_free": (_STATUS, [c_void_p, c_void_p]),
    "hvd_arena_stat": (_STATUS, [c_void_p, POINTER(CArenaInfo)]),
    "hvd_arena_trim": (_STATUS, [c_void_p, c_uint64]),
    "hvd_arena_close": (None, [c_void_p]),
    "hvd_net_create": (
        _STATUS,
        [c_void_p, POINTER(c_int), c_uint32, c_void_p, POINTER(CNetSpec), POINTER(c_void_p)],
    ),
    "hvd_net_add_peer": (_STATUS, [c_void_p, c_uint32, c_uint32, c_int]),
    "hvd_net_start": (_STATUS, [c_void_p]),
    "hvd_net_plan_add": (_STATUS, [c_void_p, c_uint64, POINTER(c_uint32), c_uint32, POINTER(c_uint32), c_uint32]),
    "hvd_net_plan_remove": (_STATUS, [c_void_p, c_uint64]),
    "hvd_net_plan_limit": (_STATUS, [c_void_p, c_uint64, c_uint64]),
    "hvd_net_events": (_STATUS, [c_void_p, POINTER(CNetEvent), c_uint32, POINTER(c_uint32)]),
    "hvd_net_event_fd": (c_int, [c_void_p]),
    "hvd_net_abort": (_STATUS, [c_void_p, c_char_p]),
    "hvd_net_stat": (_STATUS, [c_void_p, POINTER(CNetInfo)]),
    "hvd_net_peer_stat": (_STATUS, [c_void_p, c_uint32, POINTER(CNetPeerInfo)]),
    "hvd_net_time_stat": (_STATUS, [c_void_p, POINTER(CNetTimes)]),
    "hvd_net_close": (None, [c_void_p]),
    "hvd_engine_open": (_STATUS, [c_int, c_void_p, c_uint32, POINTER(c_int), c_uint32, POINTER(c_void_p)]),
    "hvd_engine_close": (None, [c_void_p]),
    "hvd_engine_agent_dead": (_STATUS, [c_void_p]),
    "hvd_engine_reason": (c_uint32, [c_void_p, c_char_p, c_uint32]),
    "hvd_engine_state": (_STATUS, [c_void_p]),
    "hvd_op_reduce": (_STATUS, [c_void_p, POINTER(CSegment), c_uint32, c_uint32, c_uint64, POINTER(c_int64)]),
    "hvd_op_pull": (
        _STATUS,
        [
            c_void_p,
            POINTER(CSegment),
            c_uint32,
            POINTER(c_int64),
            c_uint32,
            POINTER(CSpan),
            c_uint32,
            c_uint64,
            POINTER(c_int64),
        ],
    ),
    "hvd_op_bind": (_STATUS, [c_void_p, c_int64, c_uint64, POINTER(c_uint64)]),
    "hvd_op_unbind": (_STATUS, [c_void_p, c_int64]),
    "hvd_op_reduce_bound": (
        _STATUS,
        [c_void_p, c_uint64, c_void_p, c_void_p, c_uint64, c_uint32, c_uint64, POINTER(c_int64)],
    ),
    "hvd_op_wait": (_STATUS, [c_void_p, c_int64, c_uint32]),
    "hvd_op_tag": (_STATUS, [c_void_p, c_int64, c_uint64]),
    "hvd_op_poll": (_STATUS, [c_void_p, c_int64]),
    "hvd_op_fail": (_STATUS, [c_void_p, c_int64]),
    "hvd_op_meta": (
        _STATUS,
        [c_void_p, c_int64, c_uint32, POINTER(c_int64), c_uint32, POINTER(c_uint32), POINTER(c_uint64)],
    ),
    "hvd_op_pull_copy": (_STATUS, [c_void_p, c_int64, POINTER(CCopy), c_uint32]),
    "hvd_op_pull_reduce": (_STATUS, [c_void_p, c_int64, c_uint64, c_void_p, c_uint64]),
    "hvd_op_done": (_STATUS, [c_void_p, c_int64]),
}


def library_path() -> Path:
    """Where the library lies: in one of the package's folders (an editable install has two)."""
    folders = [str(folder) for folder in sys.modules[__package__].__path__]
    for folder in folders:
        path = Path(folder, _LIBRARY)
        if path.exists():
            return path
    raise ImportError(
        f"{_LIBRARY} is not in {' or '.join(folders)}: the installation is incomplete. "
        "Reinstall with `pip install hvd`, or `pip install .` in a source tree."
    )


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    # The version first: a library of another version may lack functions, or take other arguments.
    found = library.hvd_abi_version()
    if found != ABI_VERSION:
        raise ImportError(
            f"{library_path()} has ABI version {found}, this package needs {ABI_VERSION}: two installations are mixed. "
            "Uninstall hvd, then install it again."
        )
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


lib = _load()
