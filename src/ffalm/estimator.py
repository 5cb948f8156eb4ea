"""`FairFederatedClassifier`: federated training and fairness targets behind scikit-learn's estimator interface.

scikit-learn is optional (`pip install 'ffalm[sklearn]'`): without it the class can be imported, but not instantiated.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, ClassVar, Self, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from ffalm.algorithms import Algorithm, Measure
from ffalm.arrays import numbers
from ffalm.data.array_parts import warn_of_scale
from ffalm.data.group_settings import unknown_name
from ffalm.data.row_views import ClientRows, RowView
from ffalm.data.splits import split_rows
from ffalm.data.types import Examples, Task
from ffalm.errors import UserError, short_repr
from ffalm.fair_answer import FairAnswer, fair
from ffalm.fairness.histograms import scores_of
from ffalm.federation import Federation
from ffalm.randomness import Purpose, generator
from ffalm.run_settings import Optimizer, Training
from ffalm.runs import Result
from ffalm.simulation import Model, RunKeywords, default_algorithm, simulate
from ffalm.system.torch_modes import usual_modes
from ffalm.targets.repair import Repair, draws_of_rows
from ffalm.targets.target import Repair as RepairSetting
from ffalm.targets.target import Target

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:  # pragma: no cover

    class ClassifierMixin:  # type: ignore[no-redef]
        """Stands in for scikit-learn's class."""

    class BaseEstimator:  # type: ignore[no-redef]
        """Stands in for scikit-learn's class: it cannot be instantiated."""

        def __new__(cls, *_: Any, **__: Any) -> Self:
            raise UserError("FairFederatedClassifier needs scikit-learn: pip install 'ffalm[sklearn]'.")


Codes = NDArray[np.int64]

_PLAIN = "fedavg"  # without groups
_FAIR = "ffalm"  # with groups, and without a target
#: Algorithms of this library that use no groups.
_WITHOUT_GROUPS = frozenset({"afl", "central", "fedadam", "fedavg", "fedavgm", "fedprox", "qffl", "scaffold"})


class InvalidInput(UserError, ValueError):
    """A `UserError` that scikit-learn's tools know as the `ValueError` that they expect of estimators."""


class FairFederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier trained over a simulated federation, within a fairness target if one is given.

        model = FairFederatedClassifier(target="dpd <= 0.05", random_state=0)
        model.fit(X, y, groups=people["sex"], clients=people["hospital"])
        model.predict(X_new, groups=new_people["sex"])

    Without `target` one algorithm is trained on all rows: FedAvg, or FFALM if groups are given, unless `algorithm`
    names another. With `target`, such as "eod <= 0.05", a share of the rows is held out, the candidates of `ffalm.fair`
    (or `algorithm` alone) are trained on the others, and the most accurate model within the target is taken together
    with its thresholds: `repair="groups"` allows one threshold per group, "single" one for everybody. `answer_` has the
    verdict and the candidates.

    Parameters
    ----------
    algorithm : name or algorithm object, such as "fairfed" or `ffalm.FFALM(penalty=5.0)`
    target : fairness target, None for none
    favourable : label that people want; by default the last of `classes_`
    repair : "none", "single", "groups" or "randomised": thresholds that a target's answer may use
    n_clients : number of equal random parts that rows are split into if `fit` is given no `clients`
    model : "linear", "mlp", or a function that makes an `nn.Module`
    rounds, local_epochs, batch_size, optimizer : as in `ffalm.simulate`
    lr : learning rate; None: with a target it is chosen on held-out rows, as in `ffalm.fair`, without one 0.05
    validation_fraction : share of the rows that is held out for a target
    standardize : scale each feature to mean 0 and standard deviation 1, by the pooled training rows
    device : "auto", "cpu" or "cuda"
    random_state : seed of model, batches and splits: a whole number, a `RandomState`, or None for a new one each time

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as of every classifier of scikit-learn
    groups_ : the groups that training rows had, None if none were given
    answer_ : the `FairAnswer` to the target, None without one
    result_ : the `Result` of the run without a target, None with one
    """

    #: Metadata routing gives `score` no groups unless asked: a search whose `fit` takes them need not name both.
    __metadata_request__score: ClassVar = {"groups": False}

    def __init__(
        self,
        algorithm: str | Algorithm | None = None,
        *,
        target: str | Target | None = None,
        favourable: Any = None,
        repair: RepairSetting = "groups",
        n_clients: int = 1,
        model: Model = "mlp",
        rounds: int = Training.rounds,
        local_epochs: int = Training.local_epochs,
        batch_size: int | None = Training.batch_size,
        lr: float | None = None,
        optimizer: Optimizer = Training.optimizer,
        validation_fraction: float = 0.2,
        standardize: bool = True,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.algorithm = algorithm
        self.target = target
        self.favourable = favourable
        self.repair = repair
        self.n_clients = n_clients
        self.model = model
        self.rounds = rounds
        self.local_epochs = local_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.optimizer = optimizer
        self.validation_fraction = validation_fraction
        self.standardize = standardize
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None, clients: Any = None) -> Self:  # noqa: N803
        """Train on a table of numbers; `groups` and `clients` have one value of any type a row.

        A missing group (None, NaN) is unknown: such rows train, and are not compared.
        """
        with np.errstate(invalid="ignore", over="ignore"):  # sums and casts by which numbers are checked
            X, y = validate_data(self, _on_cpu(X), _on_cpu(y), dtype=np.float64)  # noqa: N806
            check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        _require(len(self.classes_) >= 2, "All rows are of one class: a classifier needs rows of two or more.")
        seed = self._seed()
        names, codes = (None, np.zeros(len(X), np.int64)) if groups is None else _coded(groups, len(X), "groups")
        self.groups_ = names
        self.mean_, self.scale_ = self._scaling(X)
        if not self.standardize:
            warn_of_scale([torch.from_numpy(X)], stacklevel=2)
        with usual_modes():
            rows = Examples(self._scaled(X), *map(torch.from_numpy, (labels, codes)))
            self._train(self._federation(rows, clients, seed), seed)
        return self

    def _train(self, federation: Federation, seed: int) -> None:
        """Train on a federation, and keep the module with its thresholds."""
        settings: RunKeywords = {"model": self.model, "rounds": self.rounds, "local_epochs": self.local_epochs,
                                 "batch_size": self.batch_size, "optimizer": self.optimizer,
                                 "device": self.device}  # fmt: skip
        if self.lr is not None:
            settings["lr"] = self.lr
        self.answer_: FairAnswer | None = None
        self.result_: Result | None = None
        if self.target is None:
            self.result_ = simulate(self._algorithm(), federation, seed=seed, **settings)
            self.module_ = self.result_.model.module
            self.repair_: Repair | None = None
        else:
            _require(
                self.groups_ is not None, "A fairness target compares groups: give each row's as fit(X, y, groups=...)."
            )
            _require(self.repair != "blind", "This estimator has no blind rules: use ffalm.fair.")
            chosen = None if self.algorithm is None else [self.algorithm]
            self.answer_ = fair(
                federation, self.target, seed=seed, algorithms=chosen, repair=self.repair, **settings
            )  # fmt: skip
            self.module_ = copy.deepcopy(self.answer_.model.module).cpu()
            self.repair_ = Repair.from_plain(self.answer_.best.repair)
        self.module_ = self.module_.double().eval()  # so that a row's prediction does not depend on its neighbours

    def predict(self, X: Any, groups: Any = None) -> NDArray[Any]:  # noqa: N803
        """The class of each row, by the target's thresholds if there are any.

        Thresholds by group need `groups`. Rows of an unknown group, and all rows without `groups`, get the single
        threshold; `groups` of which none is known are refused. Randomised thresholds are drawn by a row's features and
        by how many rows before it have the same ones.
        """
        logits, rows = self._logits(X)
        if self.repair_ is None:
            return cast(NDArray[Any], self.classes_[logits.argmax(-1).numpy()])
        codes = None
        if groups is not None:
            given = _objects(groups)
            _require(
                given.shape == (len(rows),),
                f"There must be one value of `groups` per row; got {given.shape} for {len(rows)} rows.",
            )
            values = pd.Series(given)
            known = pd.Index(self.groups_, dtype=object)
            codes = torch.from_numpy(known.get_indexer(values))
            _require(
                not self.repair_.by_group or not values.notna().any() or bool((codes >= 0).any()),
                f"None of the `groups` was given to `fit`, which had {', '.join(map(repr, known))}.",
            )
        scores, fallback = scores_of(logits, self._favourable())
        draws = draws_of_rows(row.tobytes() for row in rows.numpy()) if self.repair_.kind == "randomised" else None
        chosen = torch.where(self.repair_.favourable(scores, codes, draws), self._favourable(), fallback)
        return cast(NDArray[Any], self.classes_[chosen.numpy()])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """P(class) of each row by the model alone, whatever the thresholds; columns are in the order of `classes_`."""
        return self._logits(X)[0].softmax(-1).numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:  # noqa: N803
        """The accuracy of `predict(X, groups)`."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _seed(self) -> int:
        whole = isinstance(self.random_state, int | np.integer)
        seed = int(self.random_state if whole else check_random_state(self.random_state).randint(2**31 - 1))
        _require(seed >= 0, f"`random_state` must be a whole number from 0 up; got {seed}.")
        return seed

    def _algorithm(self) -> Algorithm:
        """The algorithm that is trained without a target."""
        given = self.algorithm
        if given is None:
            given = _PLAIN if self.groups_ is None else _FAIR
        chosen = default_algorithm(given)[0] if isinstance(given, str) else given
        if not isinstance(chosen, Algorithm):
            return chosen  # `simulate` says what it takes
        _require(
            chosen.trains_on != "alone",
            f"{short_repr(given)} trains a model for each client, and a classifier has one: choose another algorithm.",
        )
        ours = type(chosen).__module__.startswith("ffalm.")
        uses_groups = chosen.name not in _WITHOUT_GROUPS and (ours or chosen.measure is not Measure.NOTHING)
        _require(
            self.groups_ is not None or not uses_groups,
            f"{short_repr(given)} compares groups: give each row's as fit(X, y, groups=...), or choose another one.",
        )
        return chosen

    def _favourable(self) -> int:
        """The favourable label as its place in `classes_`."""
        if self.favourable is None:
            return len(self.classes_) - 1
        places: Any = []
        with suppress(Exception):  # a value of another kind, which cannot be compared with labels
            places = np.flatnonzero(np.asarray(self.classes_ == self.favourable, dtype=bool))
        _require(
            len(places) == 1, f"The favourable label {short_repr(self.favourable)} is not one of the classes in `y`."
        )
        return int(places[0])

    def _federation(self, rows: Examples, clients: Any, seed: int) -> Federation:
        """The rows of each client, and held-out ones if there is a target."""
        groups = ("0", "1") if self.groups_ is None else _names(self.groups_)
        unknown = bool((rows.group == len(groups)).any())
        task = Task(
            "arrays",
            label_names=tuple(map(str, self.classes_)),
            group_names=(*groups, *[unknown_name(groups)] * unknown),
            favourable=self._favourable(),
            excluded=int(unknown),
        )
        train, held_out = np.arange(len(rows)), None
        if self.target is not None:
            share = self.validation_fraction
            inside = isinstance(share, Real) and 0 < share < 1
            _require(inside, f"`validation_fraction` must lie between 0 and 1; got {short_repr(share)}.")
            train, kept = split_rows((rows.y * task.groups + rows.group).numpy(), (1 - share, share), seed)
            held_out = rows.take(torch.as_tensor(kept))
        if clients is None:
            fits = isinstance(self.n_clients, Integral) and 1 <= self.n_clients <= len(train)
            _require(fits, f"`n_clients` must be from 1 to the number of rows, {len(train)}; got {self.n_clients}.")
            names: tuple[str, ...] = ()
            parts = np.array_split(generator(seed, Purpose.PARTITION).permutation(train), int(self.n_clients))
        else:
            owners, owner = _coded(clients, len(rows), "clients", fewest=1)
            _require(int(owner.max()) < len(owners), "Some rows have no client: give each row's.")
            held = [train[owner[train] == number] for number in range(len(owners))]
            names = tuple(str(name) for name, part in zip(owners, held, strict=True) if len(part))
            parts = [part for part in held if len(part)]
        dealt = ClientRows([RowView(rows, torch.as_tensor(np.sort(part))) for part in parts])
        return Federation(dealt, held_out, None, task, names, all_groups=self.groups_ is not None)

    def _scaling(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        chosen = isinstance(self.standardize, bool | np.bool_)
        _require(chosen, f"`standardize` must be True or False; got {short_repr(self.standardize)}.")
        if not self.standardize:
            return np.zeros(x.shape[1]), np.ones(x.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            spread = x.std(0)
        _require(bool(np.isfinite(spread).all()), "Some features are too large to be standardised: scale them down.")
        return x.mean(0), np.where(spread > 0, spread, 1.0)

    def _scaled(self, x: NDArray[np.float64]) -> Tensor:
        return torch.as_tensor((x - self.mean_) / self.scale_)

    def _logits(self, X: Any) -> tuple[Tensor, Tensor]:  # noqa: N803
        """Each row's logits, and its features as the model takes them."""
        check_is_fitted(self, "module_")
        with np.errstate(invalid="ignore", over="ignore"), usual_modes():
            rows = self._scaled(validate_data(self, _on_cpu(X), dtype=np.float64, reset=False))
            with torch.inference_mode():
                return self.module_(rows).clone(), rows


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidInput(message)


def _on_cpu(values: Any) -> Any:
    """A tensor as an array, of whatever layout, type and device it is; anything else as it is.

    So are tensors of one value in a list: two of them are never equal as objects.
    """
    if isinstance(values, list | tuple) and any(isinstance(one, Tensor) for one in values):
        return [one[()] if isinstance(one, np.ndarray) and one.ndim == 0 else one for one in map(_on_cpu, values)]
    if not isinstance(values, Tensor):
        return values
    try:
        dense = numbers(values, "values of a tensor")
    except UserError as error:
        raise InvalidInput(str(error)) from None
    return (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()


def _objects(values: Any) -> NDArray[Any]:
    """Values of any type, of which masked ones are missing."""
    given: NDArray[Any] = np.array(_on_cpu(values), dtype=object)
    if isinstance(values, np.ma.MaskedArray):
        given[np.ma.getmaskarray(values)] = None
    return given


def _names(values: NDArray[Any]) -> tuple[str, ...]:
    """A different text for each value, also for 1 and "1"."""
    plain = tuple(map(str, values))
    return plain if len(set(plain)) == len(plain) else tuple(map(repr, values))


def _coded(values: Any, rows: int, what: str, fewest: int = 2) -> tuple[NDArray[Any], Codes]:
    """The distinct values in order, and each row's index among them; a missing value gets their count."""
    given = _objects(values)
    _require(given.shape == (rows,), f"There must be one value of `{what}` per row; got {given.shape} for {rows} rows.")
    try:
        codes, names = pd.factorize(given, sort=True)
    except TypeError:
        raise InvalidInput(f"The `{what}` must be values that can be sorted, such as texts or numbers.") from None
    _require(len(names) >= fewest, f"There must be at least {fewest} different `{what}`; got {len(names)}.")
    return np.asarray(names), np.where(codes < 0, len(names), codes).astype(np.int64)
