"""Programs that must work on ranks wherever they are: on one host (``tests.multi``) and over several (``tests.hosts``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["COLLECTIVES", "Case"]

_CLIENT = "tests.common.rank_programs"
_MULTI = "tests.multi.programs"


@dataclass(frozen=True, slots=True)
class Case:
    """``sizes`` are the numbers of ranks to try on one host; ``says[rank]`` must be in that rank's output.

    Of two hosts or more it runs on any number of ranks from ``least`` on, unless ``only`` names one.
    """

    program: str
    sizes: tuple[int, ...] = (2,)
    arguments: tuple[str, ...] = ()
    says: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    least: int = 2
    only: int = 0
    hosts: bool = True

    @property
    def title(self) -> str:
        """The program's name alone."""
        return self.program.rpartition(".")[2]

    def fits(self, np: int) -> bool:
        """Whether it can run on so many ranks of several hosts."""
        return self.hosts and np >= self.least and self.only in (0, np)


COLLECTIVES = (
    Case(f"{_CLIENT}.collectives", (1, 2, 4)),
    Case(f"{_MULTI}.pull_kinds", (1, 2, 3)),
    Case(f"{_CLIENT}.unnamed"),
    Case(f"{_CLIENT}.any_order"),
    Case(f"{_CLIENT}.contests"),
    Case(f"{_CLIENT}.duplicates"),
    Case(f"{_CLIENT}.skewed_shutdown"),
    Case(f"{_CLIENT}.fork"),
    Case(f"{_CLIENT}.cycles", hosts=False),  # quick only where no connections are made
    Case(f"{_MULTI}.joins", (1, 2, 3)),
    Case(f"{_MULTI}.join_with_open_operations", (2, 3)),
    Case(f"{_MULTI}.join_each_with_an_operation_of_its_own", (2, 3)),
    Case(f"{_MULTI}.other_kinds_while_joined"),
    Case(f"{_MULTI}.without_join", says={1: ("heard: ", "rank 0")}),
    Case(f"{_MULTI}.static_sets", (4,), only=4),
    Case(f"{_MULTI}.dynamic_sets", (3,), least=3),
    Case(f"{_MULTI}.different_sets", says={0: ("error: ",)}),
    Case(f"{_MULTI}.late_second_init"),
    Case(f"{_MULTI}.many_names", arguments=("1500",), variables={"HOROVOD_CACHE_CAPACITY": "100"}, hosts=False),
)
