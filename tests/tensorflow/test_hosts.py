"""The same checks over several hosts: two agents with one rank each, and agents with two and one."""

from __future__ import annotations

import importlib.util

import pytest

from tests.hosts.site import Site
from tests.tensorflow.harness import checks_of, environment
from tests.tensorflow.test_ranks import THREE, TWO
from tests.torch.harness import _split_by_rank

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


@pytest.mark.parametrize(
    ("site", "modules"), [((1, 1), TWO), ((2, 1), (*THREE, "checks_tape"))], indirect=["site"], ids=str
)
def test_over_hosts(site: Site, modules: tuple[str, ...]) -> None:
    quiet = {name: value for name, value in environment().items() if name.startswith(("TF_", "OMP_", "CUDA_"))}
    run = site.run("tests.tensorflow.harness", *modules, timeout_s=300, ok=False, **quiet)
    outputs = _split_by_rank(run.output, site.np)
    names = [f"{module}.{name}" for module in modules for name in checks_of(module)]
    missing = [(name, rank) for name in names for rank, said in enumerate(outputs) if f"PASSED {name}\n" not in said]
    assert not missing, f"{missing}\n{run.output[-6000:]}"
