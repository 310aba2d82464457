"""Enough of an agent for one host without failures: real sockets, a real board, real rank processes, no coordinator.

It lets the client and the engine be tested together and alone.  What a real agent decides about faults is not here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field

from horovod import native
from horovod.common.frames import FrameReader, frame
from horovod.proto import worker_pb2

_UNNAMED_DEPTH = 256


@dataclass
class Connection:
    sock: socket.socket
    reader: FrameReader = field(default_factory=FrameReader)
    descriptors: list[int] = field(default_factory=list)
    rank: int = -1
    arena: int = -1


@dataclass
class Plan:
    offset: int
    retired: bool = False
    acks: int = 0


class SmallAgent:
    """Serves ``size`` ranks; ``counts`` tells how many messages of each kind came."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = f"unix:@hvd-test-{secrets.token_hex(8)}"
        self.counts: dict[str, int] = {}
        self.plans: dict[int, Plan] = {}
        self._ranks: dict[int, Connection] = {}
        self._hellos: dict[int, Connection] = {}
        self._announced: dict[str, dict[int, worker_pb2.Announce]] = {}
        self._last_plan = 1 << 40
        self._board: native.Board | None = None
        self._epoch = 0
        self._left = 0
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind("\0" + self.address.removeprefix("unix:@"))
        self._server.listen()
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and closes everything."""
        self._stop.close()
        self._thread.join()
        self._close_board()
        self._server.close()
        self._stopped.close()

    def _close_board(self) -> None:
        if self._board is not None:
            os.close(self._board.fd)
            native.lib.hvd_board_close(self._board.pointer)
            self._board = None

    # ---- sockets

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._stopped:
                        for entry in [entry.data for entry in selector.get_map().values() if entry.data]:
                            entry.sock.close()
                        return
                    if key.fileobj is self._server:
                        sock = self._server.accept()[0]
                        selector.register(sock, selectors.EVENT_READ, Connection(sock))
                    elif not self._read(key.data):
                        selector.unregister(key.data.sock)
                        key.data.sock.close()

    def _read(self, connection: Connection) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(connection.sock, 1 << 16, 8)
        except ConnectionResetError:
            return False
        connection.descriptors += descriptors
        for payload in connection.reader.feed(data):
            message = worker_pb2.WorkerMessage.FromString(payload)
            kind = message.WhichOneof("body") or ""
            self.counts[kind] = self.counts.get(kind, 0) + 1
            getattr(self, f"_on_{kind}")(connection, getattr(message, kind))
        return bool(data)

    def _send(self, connection: Connection, descriptors: list[int] | None = None, **body: object) -> None:
        data = frame(worker_pb2.AgentMessage(**body).SerializeToString())  # type: ignore[arg-type]
        with contextlib.suppress(OSError):  # the rank has gone; its socket is closed when that is read
            socket.send_fds(connection.sock, [data], descriptors or [])

    # ---- protocol

    def _on_hello(self, connection: Connection, hello: worker_pb2.Hello) -> None:
        pidfd, connection.arena = connection.descriptors
        os.close(pidfd)
        connection.descriptors = []
        connection.rank = hello.rank
        self._hellos[hello.rank] = connection
        if len(self._hellos) == self.size:
            self._ranks, self._hellos = self._hellos, {}
            self._start_epoch()

    def _start_epoch(self) -> None:
        self._close_board()
        self._board = native.Board(self.size, 20_000)
        self._epoch += 1
        self._left = 0
        self.plans, self._announced = {}, {}
        everybody = range(self.size)
        arenas = [self._ranks[rank].arena for rank in everybody]
        for rank in everybody:
            welcome = worker_pb2.Welcome(
                epoch=self._epoch, rank=rank, size=self.size, local_rank=rank, local_size=self.size, cross_rank=0,
                cross_size=1, homogeneous=True, process_sets=[worker_pb2.ProcessSet(id=0, ranks=everybody)],
                local_ranks=everybody,
            )  # fmt: skip
            self._send(self._ranks[rank], [self._board.fd, *arenas], welcome=welcome)
        for arena in arenas:
            os.close(arena)

    def _on_announce(self, connection: Connection, announce: worker_pb2.Announce) -> None:
        plan = self.plans.get(announce.contested_plan)
        if plan is not None and not plan.retired:
            self.retire(announce.contested_plan, announce.contested_round)
        waiting = self._announced.setdefault(announce.signature.name, {})
        waiting[connection.rank] = announce
        if len(waiting) == self.size:
            self._decide(self._announced.pop(announce.signature.name))

    def _decide(self, waiting: dict[int, worker_pb2.Announce]) -> None:
        if len({announce.signature.SerializeToString(deterministic=True) for announce in waiting.values()}) > 1:
            error = worker_pb2.Error(kind=worker_pb2.MISMATCH, text=f"Mismatched: {waiting[0].signature.name}")
            for rank, announce in waiting.items():
                self._send(self._ranks[rank], refused=worker_pb2.Refused(request=announce.request, error=error))
            return
        self._last_plan += 1
        assert self._board is not None
        offset = self._board.plan_add(self._spec(waiting[0].signature))
        self.plans[self._last_plan] = Plan(offset)
        for rank, announce in waiting.items():
            ready = worker_pb2.PlanReady(plan=self._last_plan, offset=offset, requests=[announce.request])
            self._send(self._ranks[rank], plan_ready=ready)

    def _spec(self, signature: worker_pb2.Signature) -> native.PlanSpec:
        cooperative = signature.kind in (worker_pb2.ALLREDUCE, worker_pb2.BARRIER)
        nbytes = 0
        for shape in signature.shapes if signature.kind == worker_pb2.ALLREDUCE else ():
            count = 1
            for dim in shape.dims:
                count *= dim
            nbytes = -(-nbytes // 64) * 64 + count * native.dtype_bytes(signature.dtype)
        average = signature.op == 0
        return native.PlanSpec(
            self._last_plan, 0 if cooperative else 1, signature.dtype, 1 if average else signature.op,
            signature.prescale, signature.postscale * (1 / self.size if average else 1), nbytes,
            _UNNAMED_DEPTH if signature.unnamed else 2, tuple(range(self.size)),
        )  # fmt: skip

    def retire(self, plan_id: int, limit: int) -> None:
        """Marks the plan and tells every rank."""
        plan = self.plans[plan_id]
        plan.retired = True
        assert self._board is not None
        self._board.plan_limit(plan.offset, limit)
        for connection in self._ranks.values():
            self._send(connection, retire=worker_pb2.Retire(plan=plan_id, limit=limit))

    def _on_retire_ack(self, connection: Connection, ack: worker_pb2.RetireAck) -> None:
        for plan_id in ack.plans:
            self.plans[plan_id].acks += 1
            if self.plans[plan_id].acks == self.size:
                assert self._board is not None
                self._board.plan_remove(self.plans.pop(plan_id).offset)

    def _on_leave(self, connection: Connection, leave: worker_pb2.Leave) -> None:
        if not self._left:
            text = f"Horovod has been shut down: rank {connection.rank} called shutdown."
            assert self._board is not None
            self._board.fail(native.Status.CLOSED, text)
            error = worker_pb2.Error(kind=worker_pb2.SHUT_DOWN, text=text)
            for other in self._ranks.values():
                self._send(other, epoch_ended=worker_pb2.EpochEnded(epoch=self._epoch, error=error))
        self._left += 1
        self._send(connection, closed=worker_pb2.Closed(generation=leave.generation))


def run_ranks(size: int, program: str, timeout_s: float = 40) -> tuple[SmallAgent, list[str]]:
    """Runs ``tests.common.rank_programs.<program>`` on ``size`` ranks; each must print "done" at its end."""
    agent = SmallAgent(size)
    environment = {**os.environ, "HOROVOD_AGENT": agent.address, "HOROVOD_SIZE": str(size)}
    command = [sys.executable, "-m", "tests.common.rank_programs", program]
    processes = []
    for rank in range(size):
        variables = {**environment, "HOROVOD_RANK": str(rank)}
        processes.append(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        outputs = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
        agent.close()
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{output}"
        assert output.rstrip().endswith("done"), f"rank {rank} printed:\n{output}"
    return agent, outputs
