"""Whatever takes tasks, as a pool of workers: `concurrent.futures`, a client of Dask, mpi4py, parsl, loky."""

from simnet.analysis.worker_pools import ExecutorPool, WorkerPool
from simnet.core.errors import SimnetError


def adapted(executor: object) -> WorkerPool:
    """Return an executor as a pool: one of `concurrent.futures`, a client of Dask, or anything with `submit`.

    Raises:
        SimnetError: it has no `submit`, or the workers of a client of Dask cannot be used.
    """
    if isinstance(executor, WorkerPool):
        return executor
    if type(executor).__module__.partition(".")[0] == "distributed" and hasattr(executor, "get_versions"):
        from simnet.analysis.dask_pool import DaskPool

        return DaskPool(executor, "executor")
    if not callable(getattr(executor, "submit", None)):
        rule = "must have submit(function, *arguments), as concurrent.futures and distributed.Client have"
        raise SimnetError(f"executor: {type(executor).__name__}: {rule}; give one of them")
    return ExecutorPool(executor)  # type: ignore[arg-type]
