"""Short real trainings by Lightning, Accelerate and transformers' Trainer, and the plain loop on the same batches."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.works import training
from tests.works.ranks import outcome
from tests.works.table import WAYS, Way
from tests.works.training import STEPS, Training, check_equal, check_moved, join, model, optimizer_of

BATCH = 4


class Samples(Dataset[dict[str, torch.Tensor]]):
    """As many as two ranks see in the steps of a training."""

    def __len__(self) -> int:
        return 2 * BATCH * STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": torch.randn(6, generator=torch.Generator().manual_seed(index))}


class Recorder(nn.Module):
    """Keeps the batches that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.seen = model(), []

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(inputs.clone())
        return {"loss": self.layers(inputs).square().mean()}


def check_as_in_a_plain_loop(way: Way, recorder: Recorder, **ddp_options: Any) -> None:
    """Refuse where training on the same batches without the library ends elsewhere."""
    assert len(recorder.seen) == STEPS
    theirs = [torch.empty_like(recorder.seen[0]) for _ in range(2)]
    dist.all_gather(theirs, recorder.seen[0])
    assert not torch.equal(*theirs), "both ranks saw the same batch"
    plain = Training(way, **ddp_options)
    for inputs in recorder.seen:
        plain.optimizer.zero_grad()
        plain.ddp(inputs).square().mean().backward()
        plain.optimizer.step()
    check_moved(plain.module)
    check_equal([parameter.detach() for parameter in recorder.layers.parameters()], plain.parameters())


def with_accelerate(way: Way, _: str) -> None:
    from accelerate import Accelerator, DistributedDataParallelKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=training.CAP_MB)])
    recorder = Recorder()
    ddp, optimizer, batches = accelerator.prepare(
        recorder, optimizer_of(way, recorder.parameters()), DataLoader(Samples(), batch_size=BATCH)
    )
    join(way, optimizer.optimizer, ddp)
    for batch in batches:
        optimizer.zero_grad()
        accelerator.backward(ddp(batch["inputs"])["loss"])
        optimizer.step()
    check_as_in_a_plain_loop(way, recorder)


def with_trainer(way: Way, folder: str) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    recorder = Recorder()

    class Join(TrainerCallback):
        """At its begin the Trainer has wrapped the model."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            join(way, trainer.optimizer.optimizer, trainer.model_wrapped)

    optimizer = optimizer_of(way, recorder.parameters())
    trainer: Any = Trainer(
        model=recorder,
        args=TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            max_grad_norm=0.0,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            ddp_bucket_cap_mb=1,
            ddp_find_unused_parameters=False,
        ),
        train_dataset=Samples(),
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)),
        callbacks=[Join()],
    )
    trainer.train()
    check_as_in_a_plain_loop(way, recorder, bucket_cap_mb=1)


def with_lightning(way: Way, folder: str) -> None:
    import lightning
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    recorder = Recorder()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.recorder = recorder

        def training_step(self, one: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.recorder(one["inputs"])["loss"]

        def configure_optimizers(self) -> Any:
            return optimizer_of(way, self.parameters())

        def on_train_start(self) -> None:
            join(way, self.optimizers().optimizer, self.trainer.strategy.model)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(bucket_cap_mb=training.CAP_MB, process_group_backend="gloo"),
        plugins=[LightningEnvironment()],
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(), DataLoader(Samples(), batch_size=BATCH))
    check_as_in_a_plain_loop(way, recorder)


LIBRARIES: dict[str, Callable[[Way, str], None]] = {
    "lightning": with_lightning,
    "accelerate": with_accelerate,
    "transformers": with_trainer,
}


def work(rank: int, library: str, folder: str, where: dict[str, str]) -> None:
    """Train with a library in every way; rank 0 leaves what all ranks found in a file."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the libraries' own
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": "2"}
    # Two nodes, to binsgdm: one bit travels.
    os.environ |= where | {"LOCAL_WORLD_SIZE": "1"}
    training.FOLDER[:] = [Path(folder)]
    results: dict[str, list[Any]] = {}
    for way in WAYS:
        mine = outcome(lambda way: LIBRARIES[library](way, folder), way)
        theirs: list[Any] = [None, None]
        dist.all_gather_object(theirs, mine)
        results[str(way)] = theirs
    if rank == 0:
        torch.save(results, Path(folder) / "results.pt")
    dist.barrier()
    dist.destroy_process_group()
