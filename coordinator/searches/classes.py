"""Searches for the models of several classes, one after the other."""

from collections.abc import Callable, Generator
from dataclasses import replace

import numpy as np

from trilateral.coordinator.plan import Found, GivenUp, Observation, Probe, Search


def class_search(search: Callable[[], Search], n_classes: int) -> Search:
    """Search for a model of each class against the rest.

    Args:
        search: makes the search for one model, from the start.
        n_classes: number of classes.

    Returns:
        A search whose batches have the number of the class as their index. Its result has the points of all classes,
        one after the other, and the mean of their losses; its epochs are those of all together.
    """
    found: list[Found] = []
    for number in range(n_classes):
        outcome = yield from _of_class(search(), number)
        if isinstance(outcome, GivenUp):
            return GivenUp(f"class {number + 1} of {n_classes}: {outcome.reason}")
        found.append(outcome)
    late = [number for number, each in enumerate(found, 1) if not each.converged]
    which = f"class {late[0]} of {n_classes}" if late else "each class"
    return Found(
        np.concatenate([each.point for each in found]),
        float(np.mean([each.loss for each in found])),
        sum(each.epochs for each in found),
        converged=not late,
        reason=f"{which}: {found[late[0] - 1 if late else -1].reason}",
    )


def _of_class(search: Search, number: int) -> Generator[Probe, Observation | None, Found | GivenUp]:
    """Pass on a search whose batches are about a class."""
    try:
        probe = next(search)
        while True:
            observation = yield replace(probe, batch=replace(probe.batch, index=number))
            probe = search.send(observation)
    except StopIteration as end:
        outcome: Found | GivenUp = end.value
        return outcome
