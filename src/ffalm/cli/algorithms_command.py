"""`ffalm algorithms`: the registered algorithms, their engines and the meaning of their settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.cli.output import Json, print_json, print_table
from ffalm.cli.setting_words import SETTING_HEADS

if TYPE_CHECKING:
    from rich.console import Console

    from ffalm.cli.algorithm_facts import AlgorithmFacts


def algorithms(
    name: Annotated[str | None, typer.Argument(help="Name of an algorithm. Default: all.", show_default=False)] = None,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", help="Python file that registers your own algorithm.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the algorithms, or describe one: settings, presets, paper, limits and engines."""
    from rich.console import Console

    from ffalm.algorithms import algorithm_class
    from ffalm.algorithms import algorithms as registered
    from ffalm.cli.algorithm_facts import facts_of
    from ffalm.plugins import import_plugin

    for path in plugin or ():
        import_plugin(Path(path))
    chosen = registered() if name is None else {name: algorithm_class(name)}
    found = {key: facts_of(cls) for key, cls in chosen.items()}
    if as_json:
        plain = {key: dataclasses.asdict(facts) for key, facts in found.items()}
        print_json(plain if name is None else plain[name])
    elif name is None:
        _list(Console(), [found[key] for key in sorted(found)])
    else:
        _describe(Console(), found[name])


def _list(console: Console, every: list[AlgorithmFacts]) -> None:
    rows = [
        (facts.name, ": ".join(filter(None, (facts.title, facts.summary))), _groups(facts), _yes(facts.secure))
        for facts in every
    ]
    print_table(console, "Algorithms", ("algorithm", "what it is", "groups", "secure"), rows)
    secure, more = "secure: can run under secure aggregation.", "More on one: ffalm algorithms NAME"
    for line in (secure, *_exceptions(every), more):
        console.print(line, highlight=False, markup=False)


def _exceptions(every: list[AlgorithmFacts]) -> list[str]:
    """Which algorithms each engine does not run, a line for each engine that does not run all of them."""
    missing: dict[str, list[str]] = {}
    for facts in every:
        for engine in (name for name, reason in (facts.engines or {}).items() if reason is not None):
            missing.setdefault(engine, []).append(facts.name)
    return [f"The engine {engine} does not run {', '.join(names)}." for engine, names in missing.items()]


def _describe(console: Console, facts: AlgorithmFacts) -> None:
    from rich.markup import escape

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    heading = f"[bold]{escape(facts.title)}[/bold] ({escape(facts.name)})"
    console.print(f"{heading}: {escape(facts.summary)}", highlight=False)
    for part, text in (("", facts.about), ("Paper: ", facts.paper), ("Limits: ", facts.limits)):
        if text:
            say(f"{part}{text}")
    say(f"Groups: {_groups(facts)}")
    say(f"Engines: {engines_of(facts)}")
    for reason in filter(None, (facts.engines or {}).values()):
        say(reason)
    say(uses_of(facts))
    if facts.settings:
        title = f"Settings: --set algorithms.{facts.name}.SETTING=VALUE"
        print_table(console, title, SETTING_HEADS, [one.cells for one in facts.settings])
    for preset, settings in facts.presets.items():
        usual = " (the default)" if preset == facts.default_preset else ""
        say(f"Preset {preset}{usual}: {_listed(settings) or 'the defaults'}")


def uses_of(facts: AlgorithmFacts) -> str:
    """Where the algorithm can be used outside of simulations."""
    return (
        f"Real federations: {_yes(facts.federated)}; secure aggregation: {_yes(facts.secure)}; "
        f"differential privacy: {_yes(facts.private)}{_train_rows(facts)} (with the default settings)"
    )


def engines_of(facts: AlgorithmFacts) -> str:
    """The engines that run the algorithm."""
    if facts.engines is None:
        return "by settings"
    missing = [name for name, reason in facts.engines.items() if reason is not None]
    return ", ".join(name for name in facts.engines if name not in missing)


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {f'{value:.4g}' if isinstance(value, float) else value}"
                     for key, value in settings.items())  # fmt: skip


def _yes(value: bool | None) -> str:
    return "by settings" if value is None else "yes" if value else "no"


def _train_rows(facts: AlgorithmFacts) -> str:
    """What differential privacy requires in a real federation."""
    return ", with sites if gaps are measured on training rows" if facts.private and facts.held_out else ""


def _groups(facts: AlgorithmFacts) -> str:
    return "any" if facts.most_groups is None else str(facts.most_groups)
