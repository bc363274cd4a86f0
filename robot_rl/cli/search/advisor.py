"""Which values the next trial of a search gets, and which trials are stopped: Optuna and ASHA of Ray Tune.

ASHA (Li et al., arXiv:1810.05934, in Ray Tune's form, which never pauses a trial) compares a trial that
reaches `min_steps`, then `reduction` times as many, and so on, with those that were there before, and stops
it unless it is among the best 1/`reduction`. Ray's searcher asks Optuna's TPE sampler, whose first ten
trials are random.

Ray's `Tuner` would pickle its state, and its trials end at once. Here the runs are processes that save and
resume themselves, and what has happened is in the search's own record, from which both are told again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from robot_rl.cli.search.record import Began, Ended, Evaluated, Event, Record
from robot_rl.cli.search.space import Interval, Space, Values
from robot_rl.errors import UserError

_METRIC, _TIME = "success", "step"


@dataclass(frozen=True)
class Rungs:
    """When ASHA compares trials."""

    min_steps: int
    """Environment steps before a trial can be stopped."""
    reduction: int
    """Factor between the numbers of steps; one of so many trials goes on."""
    steps: int
    """Environment steps of a trial."""


class Advisor:
    """Suggests the values of trials, and says which of them to stop.

    Args:
        space: what is varied.
        rungs: when trials are compared.
        seed: of the sampler.
        record: what has happened already.

    Raises:
        UserError: if Ray Tune or Optuna is missing, or suggests other values than are recorded.
    """

    def __init__(self, space: Space, rungs: Rungs, seed: int, record: Record) -> None:
        schedulers, searchers, optuna = check_libraries()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._asha = schedulers.ASHAScheduler(
            metric=_METRIC,
            mode="max",
            time_attr=_TIME,
            max_t=rungs.steps,
            grace_period=rungs.min_steps,
            reduction_factor=rungs.reduction,
            # A trial that reaches its last step ends by itself.
            stop_last_trials=False,
        )
        self._optuna = searchers.OptunaSearch(
            {key: _distribution(one, optuna) for key, one in space.items()},
            metric=_METRIC,
            mode="max",
            seed=seed,
        )
        self._repeat(record.events)

    def suggest(self, trial: int) -> dict[str, str]:
        """Values of a new trial, as they are written on a command line."""
        self._asha.on_trial_add(None, _trial(trial))
        point: dict[str, Any] = self._optuna.suggest(str(trial))
        return {key: _text(one, point[key]) for key, one in self._space.items()}

    def stops(self, trial: int, step: int, success: float) -> bool:
        """Whether a trial with this validation success at a step is to be stopped."""
        decision: str = self._asha.on_trial_result(None, _trial(trial), {_TIME: step, _METRIC: success})
        return decision == "STOP"

    def end(self, trial: int, success: float | None) -> None:
        """Tell the sampler the last validation success of a trial, None if it has failed."""
        result = None if success is None else {_METRIC: success}
        self._optuna.on_trial_complete(str(trial), result, error=success is None)

    def _repeat(self, events: Sequence[Event]) -> None:
        """Tell sampler and scheduler what has happened, in the same order, so that they go on the same."""
        last: dict[int, float] = {}
        for event in events:
            match event:
                case Began(trial, values):
                    if self.suggest(trial) != values:
                        raise UserError(
                            f"Optuna now suggests other values for trial {trial} than when the search began, "
                            "perhaps in another version: choose another name=… for the search"
                        )
                case Evaluated(trial, step, success):
                    last[trial] = success
                    self.stops(trial, step, success)
                case Ended(trial, _):
                    self.end(trial, last[trial])


def check_libraries() -> tuple[Any, Any, Any]:
    """Ray Tune's schedulers and Optuna's searcher, and Optuna."""
    try:
        import optuna
        from ray.tune import schedulers
        from ray.tune.search import optuna as searchers
    except ImportError as error:
        raise UserError(
            f"search=asha needs Ray Tune and Optuna: pip install 'ray[tune]' optuna ({error})"
        ) from error
    return schedulers, searchers, optuna


def _trial(number: int) -> SimpleNamespace:
    """A trial for the scheduler, which wants to know its name alone."""
    return SimpleNamespace(trial_id=str(number))


def _distribution(one: Interval | Values, optuna: Any) -> Any:
    """Optuna's distribution of a range: of the number, of the place in an ordered list, or of the text."""
    known = optuna.distributions
    if isinstance(one, Interval):
        kind = known.IntDistribution if one.whole else known.FloatDistribution
        return kind(one.low, one.high, log=one.log)
    if one.ordered:
        return known.IntDistribution(0, len(one.texts) - 1)
    return known.CategoricalDistribution(one.texts)


def _text(one: Interval | Values, sampled: Any) -> str:
    if isinstance(one, Interval):
        return repr(sampled)
    return one.texts[sampled] if one.ordered else str(sampled)
