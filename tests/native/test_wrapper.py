"""horovod.native: the table of types follows hvd.h, statuses become errors, memory comes back."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from horovod import native
from horovod.native import _abi

HEADER = (Path(__file__).parents[2] / "native" / "include" / "hvd.h").read_text()
CODE = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
SCALARS = {
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "hvd_op": ctypes.c_int64,
    "int": ctypes.c_int,
    "hvd_status": ctypes.c_int,
    "hvd_dtype": ctypes.c_int,
    "hvd_reduce_op": ctypes.c_int,
    "double": ctypes.c_double,
}
STRUCTS = {
    "hvd_plan_spec": _abi.CPlanSpec,
    "hvd_round_info": _abi.CRoundInfo,
    "hvd_rank_info": _abi.CRankInfo,
    "hvd_arena_info": _abi.CArenaInfo,
    "hvd_segment": _abi.CSegment,
    "hvd_copy": _abi.CCopy,
    "hvd_span": _abi.CSpan,
    "hvd_net_spec": _abi.CNetSpec,
    "hvd_net_event": _abi.CNetEvent,
    "hvd_net_info": _abi.CNetInfo,
    "hvd_net_peer_info": _abi.CNetPeerInfo,
    "hvd_board_times": _abi.CBoardTimes,
    "hvd_net_times": _abi.CNetTimes,
}


def c_functions() -> dict[str, tuple[str, list[str]]]:
    """Name, result type and parameter types of each declared function."""
    found = {}
    for result, name, inside in re.findall(r"HVD_API\s+([\w\s]+?\**)\s*\b(hvd_\w+)\s*\(([^;]*)\)\s*;", CODE):
        parameters = [] if inside.strip() == "void" else [one.strip() for one in inside.split(",")]
        found[name] = (result.strip(), parameters)
    return found


def array_type(base: str, dimensions: list[str]) -> object:
    """The ctypes type of a C array; a dimension is a number or a macro of the header."""
    kind: object = ctypes.c_char if base == "char" else SCALARS.get(base)
    for dimension in reversed(dimensions):
        macro = re.search(rf"#define {dimension} (\d+)", CODE)
        kind = kind * int(macro[1] if macro else dimension)  # type: ignore[operator]
    return kind


def matches(declaration: str, kind: object) -> bool:
    """Whether the ctypes type fits a C declaration, with or without a parameter name."""
    array = re.fullmatch(r"(\w+) \w+((?:\[\w+\])+)", declaration)
    if array is not None:
        return kind is array_type(array[1], re.findall(r"\w+", array[2]))
    words = declaration.replace("const", " ").replace("*", " * ").split()
    stars, base = words.count("*"), words[0]
    if stars == 0:
        return kind is (None if base == "void" else SCALARS.get(base))
    if kind is ctypes.c_void_p:
        return base in {"void", "hvd_board", "hvd_arena", "hvd_engine", "hvd_net"}
    if kind is ctypes.c_char_p:
        return base == "char"
    target = getattr(kind, "_type_", None)
    return target is (SCALARS.get(base) or STRUCTS.get(base) or ctypes.c_void_p)


@pytest.mark.parametrize("name", sorted(c_functions()))
def test_types_follow_the_header(name: str) -> None:
    result, parameters = c_functions()[name]
    function = getattr(native.lib, name)
    assert matches(result, function.restype), f"{name} returns {result}, not {function.restype}"
    assert len(function.argtypes) == len(parameters)
    for declaration, kind in zip(parameters, function.argtypes, strict=True):
        assert matches(declaration, kind), f"{name}: {declaration} is not {kind}"


def test_the_table_and_the_header_name_the_same_functions() -> None:
    assert set(_abi.FUNCTIONS) == set(c_functions())


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_structures_follow_the_header(name: str) -> None:
    found = re.search(r"typedef struct \{([^}]*)\}\s*" + name + r"\s*;", CODE)
    assert found is not None
    declared: list[str] = []
    for statement in filter(None, (one.strip() for one in found.group(1).split(";"))):
        first, *others = statement.split(",")
        base = first.rsplit(None, 1)[0]
        declared += [first, *(f"{base} {other.strip()}" for other in others)]
    fields = [(field[0], field[1]) for field in STRUCTS[name]._fields_]
    assert len(fields) == len(declared)
    for declaration, (_, kind) in zip(declared, fields, strict=True):
        assert matches(declaration, kind), f"{name}: {declaration} is not {kind}"


@pytest.mark.parametrize(
    ("enum", "prefix"),
    [
        (native.DType, "HVD_"),
        (native.ReduceOp, "HVD_"),
        (native.PlanKind, "HVD_"),
        (native.NetEventKind, "HVD_NET_"),
    ],
)
def test_enumerations_follow_the_header(enum: type[native.DType], prefix: str) -> None:
    for member in enum:
        assert re.search(rf"\b{prefix}{member.name} = {member.value}\b", CODE), member


def test_flags_follow_the_header() -> None:
    for flag in native.PlanFlag:
        assert re.search(rf"#define HVD_PLAN_{flag.name} {flag.value}u", CODE), flag


def test_statuses_follow_the_header() -> None:
    for status in native.Status:
        assert re.search(rf"\bHVD_(E_)?{status.name} = {status.value}\b", CODE), status


def test_exported_names_exist() -> None:
    assert sorted(native.__all__) == native.__all__
    assert all(hasattr(native, name) for name in native.__all__)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (-1, native.InvalidArgument),
        (-2, native.OutOfMemory),
        (-3, native.EpochClosed),
        (-4, native.EpochFailed),
        (-5, native.OpCancelled),
        (-99, native.NativeError),
    ],
)
def test_failures_become_errors(status: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"Trying failed: .*status {status}") as caught:
        native.check(status, "Trying")
    assert type(caught.value) is error


@pytest.mark.parametrize("status", [native.Status.OK, native.Status.PENDING, native.Status.MARKED])
def test_other_statuses_are_answers(status: native.Status) -> None:
    assert native.check(status, "Trying") == status


def test_sizes_of_elements() -> None:
    assert [native.dtype_bytes(d) for d in native.DType] == [1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2]
    assert native.dtype_bytes(99) == 0


def test_warden_can_be_run() -> None:
    assert os.access(native.warden_path(), os.X_OK)


def copy_of_package(folder: Path) -> Path:
    """The package's Python files alone, under the name horovod.native."""
    package = folder / "horovod" / "native"
    package.mkdir(parents=True)
    (folder / "horovod" / "__init__.py").touch()
    for source in Path(str(native.__file__)).parent.glob("*.py"):
        shutil.copy(source, package)
    return package


def import_error(folder: Path) -> str:
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import horovod.native"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    return done.stderr


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    assert f"libhvd_native.so is not in {package}: the installation is incomplete" in import_error(tmp_path)


def test_another_abi_version_is_refused(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    shutil.copy(_abi.library_path(), package)
    table = package / "_abi.py"
    table.write_text(table.read_text().replace(f"ABI_VERSION = {native.ABI_VERSION}", "ABI_VERSION = 99"))
    assert f"has ABI version {native.ABI_VERSION}, this package needs 99" in import_error(tmp_path)


def test_a_library_without_a_function_is_refused(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    shutil.copy(_abi.library_path(), package)
    table = package / "_abi.py"
    table.write_text(table.read_text().replace('"hvd_op_done"', '"hvd_op_gone"'))
    assert "undefined symbol: hvd_op_gone" in import_error(tmp_path)


@pytest.fixture
def arena() -> Iterator[native.Arena]:
    made = native.Arena(1 << 24)
    yield made
    gc.collect()
    made.close()


def test_a_buffer_is_memory(arena: native.Arena) -> None:
    block = arena.buffer(1000)
    view = memoryview(block).cast("B")
    view[:] = bytes(i % 256 for i in range(1000))
    address = ctypes.addressof(block)
    assert address % 256 == 0
    assert arena.base <= address < arena.base + arena.nbytes
    assert os.pread(arena.fd, 1000, address - arena.base) == bytes(view)


def test_a_buffer_comes_back_when_nothing_refers_to_it(arena: native.Arena) -> None:
    block = arena.buffer(4096)
    view = memoryview(block)
    del block
    assert arena.stat()[0] >= 4096
    del view
    assert arena.stat()[0] == 0


def test_an_empty_buffer_is_allowed(arena: native.Arena) -> None:
    assert len(arena.buffer(0)) == 0


def test_an_arena_without_room_says_so(arena: native.Arena) -> None:
    with pytest.raises(native.OutOfMemory, match="no room for 33554432 bytes; HVD_ARENA_BYTES"):
        arena.buffer(1 << 25)
    assert arena.stat()[0] == 0


def test_an_arena_in_use_is_not_closed(arena: native.Arena) -> None:
    block = arena.buffer(16)
    with pytest.raises(native.InvalidArgument, match="1 of its blocks"):
        arena.close()
    block[0] = b"x"


def test_trimming_gives_memory_back(arena: native.Arena) -> None:
    block = arena.buffer(1 << 20)
    ctypes.memset(block, 1, 1 << 20)
    assert arena.stat()[2] >= 1 << 20
    del block
    arena.trim(0)
    assert arena.stat() == (0, 0, 0)


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_forked_child_gives_nothing_back() -> None:
    program = """
import os
from horovod import native
arena = native.Arena(1 << 20)
block = arena.buffer(4096)
pid = os.fork()
if pid == 0:
    del block
    os._exit(0 if arena.stat()[0] == 4096 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), arena.stat()[0])
"""
    assert run_python(program) == "0 4096\n"


def test_buffers_alive_at_exit_are_harmless() -> None:
    program = """
from horovod import native
arena = native.Arena(1 << 20)
block = arena.buffer(4096)
cycle = [block]
cycle.append(cycle)
print("over")
"""
    assert run_python(program) == "over\n"


def test_board_of_two_ranks() -> None:
    board = native.Board(2, 1000)
    try:
        spec = native.PlanSpec(
            7, native.PlanKind.COOPERATIVE, native.DType.FLOAT32, native.ReduceOp.SUM, 1, 1, 64, 2, (0, 1)
        )
        offset = board.plan_add(spec)
        assert board.plan_arrivals(offset, 2) == (0, 0)
        assert board.scan() == []
        assert board.rank_info(1) == native.RankInfo(0, 0, 0, 0, 0)
        board.plan_limit(offset, 0)
        assert not board.wait_bell(0)
        board.ring_agent()
        assert board.wait_bell(1000)
        assert board.plan_remove(offset)
        with pytest.raises(native.InvalidArgument):
            board.rank_info(2)
        board.fail(native.Status.FAILED, "rank 1 was lost")
    finally:
        board.close()
        os.close(board.fd)


def test_two_ranks_reduce_through_the_raw_functions(arena: native.Arena) -> None:
    """Both ranks in one process: pointers and handles are plain integers."""
    board, lib = native.Board(2, 1000), native.lib
    arenas = [arena, native.Arena(1 << 24)]
    descriptors = (ctypes.c_int * 2)(*(a.fd for a in arenas))
    engines = []
    for index, own in enumerate(arenas):
        pointer = ctypes.c_void_p()
        native.check(
            lib.hvd_engine_open(board.fd, own.pointer, index, descriptors, 2, ctypes.byref(pointer)), "Opening"
        )
        engines.append(pointer.value)
    spec = native.PlanSpec(1, native.PlanKind.COOPERATIVE, native.DType.INT32, native.ReduceOp.SUM, 1, 1, 12, 2, (0, 1))
    offset = board.plan_add(spec)
    data = [(ctypes.c_int32 * 3)(1, 2, 3), (ctypes.c_int32 * 3)(10, 20, 30)]
    ops = []
    for engine, values in zip(engines, data, strict=True):
        op, address = ctypes.c_int64(), ctypes.addressof(values)
        assert lib.hvd_op_reduce_bound(engine, offset, address, address, 12, 0, 5, ctypes.byref(op)) == native.Status.OK
        ops.append(op.value)
    for engine, number in zip(engines, ops, strict=True):
        assert lib.hvd_op_wait(engine, number, 5000) == native.Status.OK
        assert lib.hvd_op_wait(engine, number, 0) == native.Status.INVALID, "a handle that is gone"
    assert [list(values) for values in data] == [[11, 22, 33]] * 2
    for engine in engines:
        lib.hvd_engine_close(engine)
    board.close()
    os.close(board.fd)
    arenas[1].close()
