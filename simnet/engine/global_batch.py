"""How many micro-batches an iteration takes whose samples on all ranks are given."""

MAX_MICRO_BATCHES = 10_000


def micro_batches(global_batch: int, world_size: int, batch_per_rank: int) -> int:
    """Return the micro-batches of one iteration.

    Raises:
        ValueError: the ranks do not divide the batch, or take it in too many parts; the sentence begins with the key.

    Example:
        >>> micro_batches(4096, world_size=64, batch_per_rank=16)
        4
    """
    at_once = world_size * batch_per_rank
    taken = f"{world_size} ranks x {batch_per_rank} samples"
    if global_batch % at_once:
        repair = "change it, workload.batch_per_rank or the number of ranks"
        raise ValueError(f"run.global_batch: {global_batch}: must be a multiple of {taken} = {at_once}; {repair}")
    count = global_batch // at_once
    if count > MAX_MICRO_BATCHES:
        repair = "raise workload.batch_per_rank"
        raise ValueError(
            f"run.global_batch: {global_batch}: {count} micro-batches of {taken}: at most {MAX_MICRO_BATCHES}; {repair}"
        )
    return count
