"""`ffalm sweep`: the front of accuracy against a fairness gap over the settings of algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffalm.cli.flags import Flag, alpha_flag, listed, literal, overrides, seeds_flag, study_flags, takes
from ffalm.cli.output import print_json, print_results, raise_if_diverged
from ffalm.cli.running import run_shown
from ffalm.errors import UserError, require
from ffalm.settings import merged
from ffalm.targets.target import Target

if TYPE_CHECKING:
    from ffalm.studies.sweeps import Sweep

_WHAT = "What to sweep"


def _flags() -> tuple[Flag, ...]:
    return (
        Flag("algorithms", str | None, "Algorithms, comma-separated. Default: lagrangian.", _WHAT, also="algorithm"),
        Flag(
            "over",
            list[str] | None,
            "Setting and its values, e.g. tolerance=0,0.02,0.05; may be given several times, and as ALGORITHM.SETTING.",
            _WHAT,
        ),
        Flag("metric", str, "Gap to draw accuracy against: dpd, eod, equalized_odds and others.", _WHAT, default="dpd"),
        Flag("at", str | None, 'Name the most accurate point within a bound, e.g. "dpd <= 0.05".', _WHAT),
        seeds_flag(_WHAT),
        alpha_flag(),
        *study_flags(),
    )


@takes("sweep", _flags)
def sweep(**values: Any) -> None:
    """Train algorithms at several values of their settings: fronts of accuracy against a fairness gap."""
    settings = overrides(values, _flags())
    from ffalm import config as configs
    from ffalm.partition import EACH
    from ffalm.plugins import import_plugin
    from ffalm.studies.study import SEEDS
    from ffalm.studies.sweeps import Sweep, check_metric, sections_of

    check_metric(values["metric"])
    bound = None if values["at"] is None else Target.parse(values["at"])
    folder: Path | None = values["out"]
    if values["resume"] and folder and not values["over"] and (folder / "config.toml").exists():
        whole = merged(configs.read(folder / "config.toml"), settings)
    else:
        file = configs.read(values["config"]) if values["config"] else {}
        whole = merged(merged({"seeds": list(range(SEEDS))}, file), settings)
        fixed = configs.section(whole, "algorithms")
        names = listed(values["algorithms"] or "") or list(fixed) or ["lagrangian"]
        for plugin in whole.get("plugins", ()):
            import_plugin(Path(plugin))
        whole["algorithms"] = sections_of(names, _over(values["over"] or []), values["metric"], fixed)
    config = configs.parse(whole)
    require(len(config.alphas) == 1, "A sweep is of one skew: give one --alpha.")
    require(config.partition.leave_out != EACH, "A sweep leaves out one site: name it with --leave-out.")
    _show(Sweep(run_shown(config, "sweep", values), values["metric"]), bound, values["json"])


def _over(given: list[str]) -> dict[str, list[Any]]:
    """Values by setting; those of a setting given twice are joined."""
    found: dict[str, list[Any]] = {}
    for text in given:
        name, _, values = text.partition("=")
        require(
            bool(name.strip() and listed(values)),
            f"--over takes a setting and its values, such as tolerance=0,0.02,0.05; got {text!r}.",
        )
        found.setdefault(name.strip(), []).extend(literal(value) for value in listed(values))
    return found


def _show(sweep: Sweep, bound: Target | None, as_json: bool) -> None:
    """Write report and fronts, then print tables, the chosen point and where the files are."""
    from ffalm.report.front_report import chosen, points, tidy, volumes
    from ffalm.report.fronts import best_at

    fronts, folder = sweep.fronts, sweep.study.folder
    written = sweep.study.write_report() | sweep.write()
    found, unmet = None, ""
    if bound is not None:
        try:
            found = best_at(fronts, bound)
        except UserError as error:  # no point is within it, but the fronts are still a result
            unmet = str(error)
    if as_json:
        plain: dict[str, Any] = {
            "folder": folder,
            "files": written,
            "metric": sweep.metric,
            "hypervolume": {
                front.algorithm: {"mean": front.hypervolume, "interval": front.interval, "seeds": front.hypervolumes}
                for front in fronts
            },
            "points": tidy(fronts).records(),
        }
        if found is not None and bound is not None:
            plain["at"] = {"bound": str(bound), "label": found[0].label, "settings": found[0].settings,
                          "chosen_on": found[1],
                          "test": {name: found[0].mean(name) for name in ("accuracy", sweep.metric)}}  # fmt: skip
        elif bound is not None:
            plain["at"] = {"bound": str(bound), "label": None, "why": unmet}
        print_json(plain)
    else:
        lines = [chosen(*found, bound)] if found is not None and bound is not None else [unmet] * bool(unmet)
        lines.append(f"Fronts: {folder / 'fronts.svg'}; report: {folder / 'report.html'}")
        print_results((points(fronts), volumes(fronts)), lines)
    raise_if_diverged(sweep.study)
