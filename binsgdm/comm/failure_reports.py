"""End an exchange after a collective has failed: close the connections, so that the others notice, and say why."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from binsgdm.comm.abort import abort_reason, close, give_up
from binsgdm.comm.groups import Groups
from binsgdm.comm.lost_ranks import Company, strangers
from binsgdm.errors import BinsgdmError

REPAIR = "start all ranks again from their checkpoints"


def end_over_gloo(
    where: str, ended: list[Groups], company: Company | None, what: str, error: RuntimeError
) -> BinsgdmError:
    """Return which rank refused, or is lost.

    Args:
        where: the class or function that the user called.
        ended: the groups; taken out of the list, since connections close with the last reference.
        company: the ranks, if they have come to know each other.
        what: has failed.
        error: of torch.
    """
    groups = ended.pop()
    rank, company = groups.global_rank, company or strangers(groups)
    company.sign_in()
    refused = None if company.has_lost_store else abort_reason(groups)
    traceback.clear_frames(error.__traceback__)  # they hold groups
    close(groups)
    del groups
    if refused is not None:
        return BinsgdmError(f"{where}: {_reported(refused, rank)}")
    return BinsgdmError(
        f"{where}: {company.find()}, as rank {rank} noticed in {what} ({_shortened(error)}): no rank can go on alone; "
        f"{REPAIR}"
    )


def end_otherwise(where: str, ended: list[Groups], _: Company | None, what: str, error: RuntimeError) -> BinsgdmError:
    """Do the same over NCCL, or with one rank; `error` says who is missing, if that is known."""
    groups = ended.pop()
    refused, rank = abort_reason(groups), groups.global_rank
    cause = (
        _reported(refused, rank)
        if refused is not None
        else (f"{what} failed on rank {rank} ({_shortened(error)}): a rank is gone or did not take this step; {REPAIR}")
    )
    give_up(groups, f"{where}: {cause}")
    return BinsgdmError(f"{where}: {cause}")


@contextmanager
def in_a_sentence(where: str) -> Iterator[None]:
    """Say that a collective of the user's own group has failed over gloo; nobody knows there whose fault it is.

    Raises:
        BinsgdmError: it has.
    """
    try:
        yield
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise BinsgdmError(
            f"{where}: a rank is gone, or did not call it ({_shortened(error)}): every rank must call it; read there "
            f"why, and {REPAIR}"
        ) from error


def _reported(refused: str, rank: int) -> str:
    """Return what the rank that aborted has said, for another one."""
    return f"{refused} (reported by rank {rank}, which cannot continue)"


def _shortened(error: RuntimeError) -> str:
    """Return what gloo says without its source lines and advice."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[\S*gloo\S*\] ", "", text).partition(". This is typically")[0]
