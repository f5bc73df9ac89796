"""Predicts how good an unmeasured candidate is, from all that were measured in this run.

The features are MetaSchedule's (164 numbers for every statement that stores something: arithmetic, reuse
distances, vector and parallel loops). A candidate is described by their sum and their maximum over its
statements; gradient-boosted trees learn the ratio of the task's best time to the candidate's, so that one
model serves all tasks. Zhang et al., *Ansor* (OSDI 2020), describe features and target.

MetaSchedule's own XGBModel predicts at random until it has seen 100 samples and trains for seconds;
a run here has a few hundred trials in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

_MIN_SAMPLES = 12
_ROUNDS = 60
_GROWTH = 0.1
"""The model is trained anew when the samples have grown by this much: early often, later seldom."""


class CostModel:
    """One model for all tasks of a run. Threads: one at a time.

    Args:
        seed: makes training and the predictions before it repeatable.
        threads: for training and predicting.
    """

    def __init__(self, seed: int, threads: int) -> None:
        self._seed = seed
        self._threads = threads
        self._random = np.random.default_rng(seed)
        self._features: dict[str, list[np.ndarray]] = {}
        self._times: dict[str, list[float]] = {}
        self._booster: Any = None
        self._trained_on = 0

    @property
    def samples(self) -> int:
        """How many measured candidates the model knows."""
        return sum(len(times) for times in self._times.values())

    def add(self, workload: str, features: Sequence[np.ndarray], times_s: Sequence[float | None]) -> None:
        """Learn measured candidates; None stands for one that failed."""
        for vector, time_s in zip(features, times_s, strict=True):
            self._features.setdefault(workload, []).append(vector)
            self._times.setdefault(workload, []).append(float("inf") if time_s is None else time_s)
        if self.samples >= max(_MIN_SAMPLES, self._trained_on * (1 + _GROWTH)):
            self._train()

    @property
    def is_trained(self) -> bool:
        """Whether predictions are better than random."""
        return self._booster is not None

    def guess(self, count: int) -> np.ndarray:
        """Return random scores, for when the model is not trained."""
        return self._random.random(count)

    def predict(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Return a score for each candidate, about 1 for as good as the best known."""
        scores: np.ndarray = self._booster.inplace_predict(np.stack(features))
        return scores.astype(np.float64)

    def _train(self) -> None:
        import xgboost

        rows, labels = [], []
        for workload, vectors in self._features.items():
            times = np.array(self._times[workload])
            best = times.min()
            if np.isfinite(best):
                rows.extend(vectors)
                labels.append(best / times)
        if not rows:
            return
        target = np.concatenate(labels)
        # What is far from the best need not be predicted well, only recognised as such.
        data = xgboost.DMatrix(np.stack(rows), label=target, weight=target + 0.1, nthread=self._threads)
        settings = {
            "max_depth": 6,
            "eta": 0.15,
            "subsample": 0.8,
            "colsample_bytree": 0.3,
            "min_child_weight": 0.1,
            "tree_method": "hist",
            "seed": self._seed,
            "nthread": self._threads,
        }
        self._booster = xgboost.train(settings, data, num_boost_round=_ROUNDS)
        self._booster.set_param({"nthread": self._threads})
        self._trained_on = self.samples


class Extractor:
    """Turns MetaSchedule's candidates into feature vectors."""

    def __init__(self) -> None:
        from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

        self._extractor = PerStoreFeature()
        self._width = 0

    def vectors(self, context: TuneContext, candidates: Sequence[MeasureCandidate]) -> list[np.ndarray]:
        """Return one vector for each candidate."""
        matrices = [m.numpy() for m in self._extractor.extract_from(context, list(candidates))]
        self._width = max((m.shape[1] for m in matrices if m.ndim == 2), default=self._width)
        return [self._vector(matrix) for matrix in matrices]

    def _vector(self, matrix: np.ndarray) -> np.ndarray:
        if matrix.ndim != 2 or not len(matrix):
            return np.zeros(2 * self._width, np.float32)
        return np.concatenate([matrix.sum(axis=0), matrix.max(axis=0)]).astype(np.float32)


def as_metaschedule(model: CostModel, extractor: Extractor) -> Any:
    """Wrap a model as the cost model object that MetaSchedule's search calls."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.cost_model import PyCostModel

    @derived_object
    class Wrapped(PyCostModel):
        # MetaSchedule's own loop keeps and trains its model; ours does both itself, and calls none of these.
        def load(self, path: str) -> None: ...

        def save(self, path: str) -> None: ...

        def update(self, context: Any, candidates: Any, results: Any) -> None: ...

        def predict(self, context: Any, candidates: Any) -> np.ndarray:
            if not model.is_trained:
                return model.guess(len(candidates))
            return model.predict(extractor.vectors(context, candidates))

    return Wrapped()
