"""A cascade: networks in order of cost, each run only on the rows that the ones before it were not sure about.

    x -> stage 1 -> sure: its answer
                 -> not sure: stage 2 -> sure: its answer
                                      -> not sure: stage 3 ...

A row's path depends on its own scores alone, so an answer does not depend on what else is in the batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._common.trees import Batch, logits_of, map_rows, rows_of
from ..surgery.row_splitting import place_of, rows_to_predict
from ..uncertainty.outputs import compute_answers, wide
from ..uncertainty.prediction import Prediction, join_outputs, prediction_of

SCORES = {
    "msp": "confidence",
    "entropy": "total",
    "mutual_information": "epistemic",
}  # larger = less certain, and the answer that each is computed from


class Cascade(nn.Module):
    """Stages that answer a row as soon as one is sure of it; made by `pb.cascade`, or by `pb.freeze` of one.

    It predicts and is evaluated like an ensemble: rows that few members answered hold each of them several times.

    Shapes:
        input: (batch, *features), as the stages take it
        output: (votes, batch, classes), where `votes` is the least common multiple of the stages' members

    Args:
        stages: modules that give (members, batch, classes), in order of cost
        windows: for each stage but the last, (low, high): a row goes on if low <= score < high
        score: of SCORES, computed from the members that have answered so far
        pooled: whether a stage's answer counts the members of the stages before it too
        keep: rows whose last score is not below it are not accepted
        report: what `pb.cascade` found on validation rows, if it was made so

    >>> ensemble, x = pb.deep(nn.Linear(4, 3), 4), torch.randn(5, 4)
    >>> cascade = Cascade([ensemble.subset([0]), ensemble.subset([1, 2, 3])], [(0.5, math.inf)])
    >>> cascade(x).shape, cascade.answers(x)["members"].shape
    (torch.Size([4, 5, 3]), torch.Size([5]))
    """

    joint = False

    def __init__(
        self,
        stages: Sequence[nn.Module],
        windows: Sequence[tuple[float, float]],
        score: str = "msp",
        *,
        pooled: bool = True,
        keep: float = math.inf,
        report: Any = None,
    ):
        super().__init__()
        if len(windows) != len(stages) - 1 or any(len(window) != 2 for window in windows):
            raise ValueError(f"Cascade: needs (low, high) for each stage but the last, but has {windows}.")
        self.stages = nn.ModuleList(stages)
        self.windows, self.score, self.pooled, self.keep, self.report = list(windows), score, pooled, keep, report
        first: Any = stages[0]
        self.task, self.class_dim = first.task, first.class_dim
        self.method = getattr(first, "method", "network")
        sizes = [sum(getattr(stage, "votes", None) or [1] * cast(int, stage.size)) for stage in stages]
        self.counts = [sum(sizes[: k + 1]) if pooled else size for k, size in enumerate(sizes)]
        self.size = self.members = math.lcm(*self.counts)
        self.eval()

    # ---------------------------------------------------------------- what users call

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The members that answered each row, each as often as makes up `size`: (votes, batch, classes)."""
        return self.run((args, kwargs))[0]

    def answers(self, *args: Any, budget: float | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Mean, label, confidence and uncertainties of each row, and how many members gave them.

        Args:
            budget: what one call may spend: a whole number of members for each row, or seconds (a float). Rows beyond
                it keep the answer that they have; time goes to the least certain rows first. The first stage always
                runs

        >>> ensemble, x = pb.deep(nn.Linear(4, 3), 4), torch.randn(5, 4)
        >>> pb.freeze(ensemble, x, anytime=True).answers(x, budget=2)["members"].tolist()
        [2, 2, 2, 2, 2]
        """
        outputs, members = self.run((args, kwargs), self._check_budget(budget))
        found = {**compute_answers(self.task, outputs, self.class_dim), "members": members}
        return found if self.keep == math.inf else {**found, "accepted": self.scores(outputs) < self.keep}

    def predict(self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None) -> Prediction:
        """The answers as a `Classification`, as `Ensemble.predict` gives them."""
        first = place_of(self, device)
        trying = self.stages[0]._trying
        pairs = rows_to_predict(x, batch_size, first.device, first.dtype, trying)  # type: ignore[arg-type]
        outputs = join_outputs((self(*args, **kwargs), y) for (args, kwargs), y in pairs)
        return prediction_of(self.task, outputs, self.class_dim)

    def explain(self) -> str:
        """The stages, when a row goes on, and what was promised, as text."""
        lines = [f"cascade of {self.method}: {', '.join(map(str, self.counts))} members, {self.task}"]
        for number, (low, high) in enumerate(self.windows, start=1):
            until = "" if high == math.inf else f" < {high:.4g}"
            lines.append(f"  stage {number}: a row goes on if {low:.4g} <= {self.score}{until}")
        return "\n".join([*lines, *(self.report.explain().splitlines() if self.report is not None else [])])

    # ---------------------------------------------------------------- running

    @torch.no_grad()
    def run(self, batch: Batch, budget: float | None = None) -> tuple[Tensor, Tensor]:
        """The outputs, (votes, batch, classes), and how many members each row has: (batch)."""
        started, rows = time.perf_counter(), rows_of(batch)
        outputs = self._stage(0, batch)
        answer, members = self._expand(outputs), torch.full((rows,), self.counts[0], device=outputs.device)
        spent, worked = time.perf_counter() - started, rows * self.counts[0]
        index = torch.arange(rows, device=outputs.device)
        for k, (low, high) in enumerate(self.windows, start=1):
            scores = self.scores(outputs)
            on = ((scores >= low) & (scores < high)).nonzero().flatten()
            own = self.counts[k] - self.counts[k - 1] * self.pooled
            if isinstance(budget, int) and self.counts[k] > budget:
                break
            if isinstance(budget, float):
                fits = int(max(0.0, budget - (time.perf_counter() - started)) / (spent / worked * own + 1e-9))
                on = on[scores[on].argsort(descending=True)[:fits].sort().values] if fits < len(on) else on
            if not len(on):
                break
            held = len(index)
            if len(on) < held:
                index, batch = index[on], map_rows(batch, held, lambda t: t[on])  # noqa: B023
            before = time.perf_counter()
            new = self._stage(k, batch)
            spent, worked = spent + time.perf_counter() - before, worked + len(index) * own
            outputs = torch.cat([outputs[:, on], new]) if self.pooled else new
            answer[:, index], members[index] = self._expand(outputs), self.counts[k]
        return answer, members

    def scores(self, outputs: Tensor) -> Tensor:
        """How uncertain each row of members' outputs is."""
        if self.score == "msp" and self.task == "classification":  # in few operations: it is computed at each stage
            return 1 - wide(outputs).softmax(-1).mean(0).amax(-1)  # members, classes
        answer = compute_answers(self.task, outputs, self.class_dim)[SCORES[self.score]]
        return 1 - answer if self.score == "msp" else answer

    def with_stages(self, stages: Sequence[nn.Module]) -> Cascade:
        """The same cascade of other forms of its stages."""
        return Cascade(stages, self.windows, self.score, pooled=self.pooled, keep=self.keep, report=self.report)

    def train(self, mode: bool = True) -> Cascade:
        """A cascade does not train: its stages stay in eval mode."""
        return super().train(False)

    def _stage(self, k: int, batch: Batch) -> Tensor:
        outputs: Tensor = logits_of(self.stages[k](*batch[0], **batch[1]))
        return outputs

    def _expand(self, outputs: Tensor) -> Tensor:
        return outputs.repeat(self.size // len(outputs), *[1] * (outputs.ndim - 1))

    def _check_budget(self, budget: Any) -> float | None:
        if budget is None:
            return None
        if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0:
            raise ValueError(f"answers: budget must be members (a whole number) or seconds (a float), not {budget!r}.")
        if isinstance(budget, int) and budget < self.counts[0]:
            raise ValueError(f"answers: the first stage has {self.counts[0]} members, but the budget is {budget}.")
        return budget
