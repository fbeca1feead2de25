"""Shapes of the parameters of real models, so that an optimizer can be timed on them without the models."""

from collections.abc import Iterator

Shape = tuple[int, ...]
Layout = tuple[Shape, ...]


def bert(*, width: int, layers: int, vocabulary: int = 30522, positions: int = 512) -> Layout:
    """Return the parameters of BERT with both pre-training heads, in the order of the model."""
    wide = 4 * width
    norm: Layout = ((width,), (width,))
    square: Layout = ((width, width), (width,))
    layer: Layout = (*square * 4, *norm, (wide, width), (wide,), (width, wide), (width,), *norm)
    heads: Layout = ((vocabulary,), *square, *norm, (2, width), (2,))
    return ((vocabulary, width), (positions, width), (2, width), *norm, *layer * layers, *square, *heads)


def resnet50() -> Layout:
    """Return the parameters of ResNet-50, in the order of the model."""
    return (*_convolution(3, 64, 7), *_bottlenecks(), (1000, 2048), (1000,))


def _bottlenecks() -> Iterator[Shape]:
    given = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from _convolution(given, width, 1)
            yield from _convolution(width, width, 3)
            yield from _convolution(width, 4 * width, 1)
            if block == 0:
                yield from _convolution(given, 4 * width, 1)
            given = 4 * width


def _convolution(given: int, made: int, side: int) -> Layout:
    """Return a convolution without a bias, and the batch normalization behind it."""
    return ((made, given, side, side), (made,), (made,))


LAYOUTS: dict[str, Layout] = {
    "resnet50": resnet50(),
    "bert_base": bert(width=768, layers=12),
    "bert_large": bert(width=1024, layers=24),
}
"""25, 110 and 336 million parameters, by the name of a shipped workload."""
