"""The environment that ranks inherit from the launcher."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from horovod.proto.security import TOKEN_VARIABLES

__all__ = ["inherited", "quiet_grpc", "secrets_of"]

# Shell functions and places of the launcher's shell, secrets, and what belongs to one slot of an outer job.
_LEFT_OUT = re.compile(
    r"BASH_FUNC_.*|OLDPWD|_HOROVOD_SECRET_KEY|HVD_TOKEN|HVD_TOKEN_FILE|HVD_SLOT_NONCE|HOROVOD_AGENT"
    r"|HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME)|HVD_FUNCTION_FD|HVD_RESULT_FD"
)


def secrets_of(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where the token of a cluster is; ranks do not get it."""
    environment = os.environ if environment is None else environment
    return {name: environment[name] for name in TOKEN_VARIABLES if name in environment}


def quiet_grpc() -> None:
    """Before grpc is loaded: what goes wrong is told in the launcher's own words."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def inherited(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of the launcher that ranks get, byte for byte."""
    environment = os.environ if environment is None else environment
    return {name: value for name, value in environment.items() if not _LEFT_OUT.fullmatch(name)}
