"""What elastic training needs of PyTorch.  The sampler is here; state and ``run`` come with elastic jobs."""

from typing import TYPE_CHECKING

from horovod.common.missing import missing_attribute
from horovod.torch.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]


if not TYPE_CHECKING:  # checkers find what is missing themselves

    def __getattr__(name: str) -> object:
        raise missing_attribute(__name__, name)
