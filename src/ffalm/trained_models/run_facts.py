"""What is known about a run's model: how to apply it, and what its card says."""

from __future__ import annotations

import torch

import ffalm
from ffalm.engines import Job
from ffalm.fairness import Tally
from ffalm.models import ARCHITECTURES, from_scratch
from ffalm.outcome import Record
from ffalm.settings import to_plain
from ffalm.trained_models.model_description import CUSTOM, ModelDescription
from ffalm.trained_models.model_facts import ModelFacts, task_facts


def description_of(job: Job) -> ModelDescription:
    """What must be known about a run's model to apply it."""
    task, made, like = job.federation.task, job.spec.model, job.federation.first_rows(0).x
    plain = {"name": CUSTOM, "function": getattr(made, "__qualname__", repr(made))}
    architecture = from_scratch(getattr(made, "architecture", None))  # type: ignore[arg-type]
    if type(architecture) in ARCHITECTURES.values():
        plain = to_plain(architecture)
    dtype = str(like.dtype).removeprefix("torch.")
    own, columns = job.federation.preprocessing, job.federation.feature_names
    return ModelDescription(task, tuple(like.shape[1:]), plain, own, dtype, job.spec.precision, columns)  # type: ignore[arg-type]


def facts_of_run(job: Job, history: list[Record], tally: Tally | None) -> ModelFacts:
    """What a model card says about a run outside of a study."""
    federation, label = job.federation, job.spec.algorithm.title
    task = federation.task
    return ModelFacts(
        title=f"{label} on {task.name}",
        algorithm=label,
        seed=job.spec.seed,
        rounds=len(history),
        task=task_facts(task),
        group_names=task.group_names,
        favourable=task.favourable,
        excluded=task.excluded,
        clients=len(federation.clients),
        training_rows=sum(map(len, federation.row_views)),
        counts=None if tally is None else tally.confusion.tolist(),
        epsilon=history[-1].get("epsilon") if history else None,
        delta=None if job.privacy is None else job.privacy.delta,
        notes=federation.notes,
        versions={"ffalm": ffalm.__version__, "torch": torch.__version__},
    )
