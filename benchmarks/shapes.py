"""The sets of tensors that are reduced: the parameters of well-known networks, in registration order."""

from __future__ import annotations

from math import prod

Shape = tuple[int, ...]
Shapes = list[Shape]


def _norm(channels: int) -> Shapes:
    return [(channels,), (channels,)]


def _bottleneck(inputs: int, width: int, has_projection: bool) -> Shapes:
    outputs = 4 * width
    shapes: Shapes = [(width, inputs, 1, 1), *_norm(width), (width, width, 3, 3), *_norm(width)]
    shapes += [(outputs, width, 1, 1), *_norm(outputs)]
    if has_projection:
        shapes += [(outputs, inputs, 1, 1), *_norm(outputs)]
    return shapes


def resnet50() -> Shapes:
    """The 161 parameters of ResNet-50 for 1,000 classes: 102 MB in float32."""
    shapes: Shapes = [(64, 3, 7, 7), *_norm(64)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += _bottleneck(inputs, width, has_projection=block == 0)
            inputs = 4 * width
    return [*shapes, (1000, inputs), (1000,)]


def gpt2_small() -> Shapes:
    """The 148 parameters of GPT-2 small: 498 MB in float32."""
    width = 768
    block: Shapes = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257, width), (1024, width), *(block * 12), (width,), (width,)]


def small(count: int = 500, nbytes: int = 4096) -> Shapes:
    """Many small float32 tensors."""
    return [(nbytes // 4,)] * count


def layers(count: int = 80, width: int = 512) -> Shapes:
    """Weights and biases of fully connected layers: 160 parameters and 84 MB by default."""
    return [(width, width), (width,)] * count


def total_bytes(shapes: Shapes, itemsize: int = 4) -> int:
    """Bytes of all tensors together."""
    return itemsize * sum(prod(shape) for shape in shapes)


SETS = {"resnet50": resnet50, "500x4KB": small, "gpt2-small": gpt2_small}
