"""The options that the benchmarks share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.measure import Effort
from benchmarks.peers import Peer, chosen


def build_parser(description: str | None, with_peers: bool = True) -> argparse.ArgumentParser:
    """A parser with the common options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--np", type=int, default=2, help="ranks of each peer")
    if with_peers:
        parser.add_argument("--peers", default="gloo,openmpi", help="some of gloo, openmpi, mirrored; '' for none")
        parser.add_argument("--peer-python", metavar="PATH", help="an interpreter whose horovod is the original")
        parser.add_argument("--without-hvd", action="store_true", help="measure the peers alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go")
    parser.add_argument("--rounds", type=int, default=Effort().rounds, help="turns that each series takes")
    parser.add_argument("--budget-s", type=float, default=Effort().budget_s, help="seconds of each turn")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser


def peers_of(arguments: argparse.Namespace) -> list[Peer]:
    """Who was asked for; ends the program when a name is unknown."""
    try:
        return chosen(arguments.peers, arguments.peer_python, not arguments.without_hvd)
    except ValueError as error:
        sys.exit(str(error))


def effort_of(arguments: argparse.Namespace) -> Effort:
    """How much was asked for."""
    return Effort(rounds=arguments.rounds, budget_s=arguments.budget_s)
