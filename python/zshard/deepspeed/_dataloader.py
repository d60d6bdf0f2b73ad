"""`training_data=` of `initialize`: a DataLoader with a share of the data for each rank; it starts over at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler


class DeepSpeedDataLoader:
    """Micro-batches of this rank.

    Args:
        dataset: one that has a length, or an iterable one, which must give each rank its share itself.
        batch_size: samples of a micro-batch.
    """

    def __init__(
        self, dataset: Any, batch_size: int, collate_fn: Any = None, drop_last: bool = False, workers: int = 0
    ) -> None:
        self.batch_size = batch_size
        self.sampler: Any = None
        self.epoch = 0
        if not isinstance(dataset, IterableDataset):
            several = dist.is_initialized() and dist.get_world_size() > 1
            self.sampler = DistributedSampler(dataset) if several else RandomSampler(dataset)
        self.loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=self.sampler,
            collate_fn=collate_fn,
            drop_last=drop_last,
            num_workers=workers,
        )
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.sampler, DistributedSampler):
            self.sampler.set_epoch(self.epoch)
        self.epoch += 1
        return iter(self.loader)

    def __next__(self) -> Any:
        """The next micro-batch; StopIteration at the end of the data, after which it begins again."""
        if self._iterator is None:
            self._iterator = iter(self)
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = None
            raise


class RepeatingLoader:
    """Repeats a loader without end."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._iterator = iter(loader)

    def __iter__(self) -> RepeatingLoader:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self.loader)
            return next(self._iterator)
