"""Names of variables that mean the same on all ranks, and settings that contradict each other."""

from __future__ import annotations

import pytest
from horovod.common.gradients import _difference, check_groups, make_settings, plain_name
from horovod.common.process_sets import global_process_set


class Compressor:
    """Any class with both methods."""

    compress = decompress = staticmethod(lambda tensor: tensor)


class Variable:
    """Can be assigned to."""

    def assign(self, value: object) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("dense/kernel", "dense/kernel"),
        ("dense_12/kernel", "dense/kernel"),
        ("sequential_3/dense_12/kernel:0", "sequential/dense/kernel:0"),
        ("adam/sequential_58_dense_126_kernel_momentum", "adam/sequential_dense_kernel_momentum"),
        ("layer2/w_1", "layer2/w"),
        ("v1", "v1"),
    ],
)
def test_plain_names(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_differences_name_the_first_place() -> None:
    text = _difference(0, ["a", "b"], 3, ["a", "c", "d"])
    assert "rank 0 has 2 and rank 3 has 3, and number 1 is b on rank 0, c on rank 3" in text
    assert "number 1 is b on rank 0, none on rank 2" in _difference(0, ["a", "b"], 2, ["a"])


def test_groups() -> None:
    one, two = Variable(), Variable()
    for good in (None, 1, 7, [[one], [two]], [(one, two)], []):
        assert check_groups(good) is good
    for wrong in (0, -1, True, "x", [one], [["x"]], [[one], [one]]):
        with pytest.raises(ValueError, match="group"):
            check_groups(wrong)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": 1, "predivide": 2.0}, "predivide"),
        ({"predivide": 0}, "above 0"),
        ({"predivide": "2"}, "must be a number"),
        ({"compression": "fp16"}, "what: compression='fp16' is no compressor"),
        ({"op": 9}, "none of Average"),
    ],
)
def test_contradictions(options: dict[str, object], text: str) -> None:
    given = {"compression": Compressor, "op": 0, "predivide": 1.0, **options}
    with pytest.raises(ValueError, match=text):
        make_settings(given["compression"], given["op"], given["predivide"], False, global_process_set, "what")
