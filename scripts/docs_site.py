"""Hooks of mkdocs.yml: pages that are made from the code or from files outside docs/, and notebooks as pages.

Commands, settings, algorithms and data sources are asked of the code at every build, so their pages are never out of
date.
"""

from __future__ import annotations

import inspect
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: Files outside docs/ that are pages of the site: path in the repository -> path in the site.
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/."""
    for place, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / place).read_text(encoding="utf-8")))
    for page, made in PAGES.items():
        files.append(File.generated(config, page, content=made()))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        old = files.get_file_from_path(f"notebooks/{notebook.name}")
        if old is not None:
            files.remove(old)
        page = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, page, content=notebook_page(notebook.read_text(encoding="utf-8"))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links between files of the repository lead to the pages that they are on the site."""
    here = page.file.src_uri
    source = next((place for place, made in OUTSIDE.items() if made == here), f"docs/{here}")
    return _LINK.sub(lambda found: site_link(found[1], source, here), markdown)


def site_link(link: str, source: str, page: str) -> str:
    """A link of a file of the repository, as the page of the site that the file is needs it."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if target in OUTSIDE:
        place = OUTSIDE[target]
    elif target.startswith("docs/"):
        place = target.removeprefix("docs/").replace(".ipynb", ".md")
    else:
        return link
    return posixpath.relpath(place, posixpath.dirname(page) or ".")


def notebook_page(text: str) -> str:
    """A notebook as Markdown, with the outputs that it holds."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source.strip():
            parts.append(f"```python\n{source}\n```")
            parts += [shown for output in cell.get("outputs", ()) if (shown := _output(output))]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "text/html" in data:
        lines = "".join(data["text/html"]).splitlines()
        return "\n".join(["<div class=output>", *(line.strip() for line in lines if line.strip()), "</div>"])
    return f"```text\n{''.join(data.get('text/plain', ''))}\n```" if data else ""


def commands_page() -> str:
    """Every command with its arguments and options, from the command line itself."""
    import typer.main

    from ffalm.cli import app, flags

    flags.prepare(list(flags._pending))
    root: Any = typer.main.get_command(app)
    lines = ["# Commands", "", "The same as `ffalm COMMAND --help`, from the version that this site was built from."]
    for words, command in _commands(root, ("ffalm",)):
        lines += ["", f"## {' '.join(words)}", "", _plain(command.help or ""), ""]
        usage = " ".join(piece for piece in command.collect_usage_pieces(command.make_context(
            words[-1], [], resilient_parsing=True)))  # fmt: skip
        lines += ["```text", f"{' '.join(words)} {usage}", "```", ""]
        rows = [_parameter(one) for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
        if rows:
            lines += ["| argument or option | what it does |", "|---|---|", *rows]
        example = (command.epilog or "").removeprefix("Example: ")
        if command.epilog and example != command.epilog:
            lines += ["", "Example:", "", "```bash", example, "```"]
    return "\n".join(lines) + "\n"


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command's subcommands and theirs, in the order of the help, without groups that do nothing by themselves."""
    found = getattr(command, "commands", {})
    if len(words) > 1 and (not found or command.invoke_without_command):
        yield words, command
    for name, one in found.items():
        if not one.hidden:
            yield from _commands(one, (*words, name))


def _parameter(one: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    if one.param_type_name == "argument":
        names = f"`{one.metavar or one.name.upper()}`"
    told = getattr(one, "help", None) or ""
    default = f"{one.default:g}" if isinstance(one.default, float) else str(one.default)
    if isinstance(one.default, str | int | float) and default not in ("", "False") and "efault" not in told:
        told = f"{told} Default: {default}."
    return f"| {names} | {_cell(told)} |"


def settings_page() -> str:
    """Every setting of a study, and the models with theirs."""
    from ffalm.cli.setting_facts import sections
    from ffalm.cli.setting_words import settings_of
    from ffalm.models import ARCHITECTURES

    lines = [
        "# Settings",
        "",
        "Settings of a study by section of a configuration file (`ffalm init` writes one, `--config FILE` reads it). "
        "`--set SECTION.SETTING=VALUE` sets any of them on a command line; some have a flag of their own. "
        "Settings of algorithms: [Algorithms](algorithms.md); of data sources: [Data sources](data.md).",
    ]
    for section in sections():
        lines += ["", f"## {f'[{section.name}]' if section.name else 'Top of the file'}", "", _cell(section.about), ""]
        lines += _settings_table(section.settings, flag=True)
    lines += ["", "## Models", "", "Chosen with `--model NAME`; settings with `--set model.SETTING=VALUE`."]
    for name, cls in ARCHITECTURES.items():
        lines += ["", f"### {name}", "", " ".join((cls.__doc__ or "").split()), "", *_settings_table(settings_of(cls))]
    return "\n".join(lines) + "\n"


def algorithms_page() -> str:
    """Every registered algorithm, as `ffalm algorithms NAME` shows it."""
    from ffalm.algorithms import algorithms
    from ffalm.cli.algorithm_facts import facts_of
    from ffalm.cli.algorithms_command import engines_of, uses_of

    lines = ["# Algorithms", "", "What `ffalm algorithms NAME` shows. What each makes equal: [Methods](../methods.md)."]
    for name, cls in algorithms().items():
        facts = facts_of(cls)
        lines += ["", f"## {name}", "", f"**{facts.title}**: {facts.summary}", "", facts.about, ""]
        lines += [f"- Paper: {facts.paper}"] if facts.paper else []
        lines += [f"- Limits: {facts.limits}"] if facts.limits else []
        lines += [f"- Groups: at most {facts.most_groups}" if facts.most_groups else "- Groups: any number"]
        lines += [f"- Engines: {engines_of(facts)}", f"- {uses_of(facts)}"]
        lines += [f"- Preset `{preset}`: {_assigned(values)}" for preset, values in facts.presets.items()]
        lines += ["", *_settings_table(facts.settings)]
    return "\n".join(lines) + "\n"


def data_page() -> str:
    """Every data source with its settings."""
    from ffalm.cli.setting_words import settings_of
    from ffalm.data import SOURCES, source_class

    lines = ["# Data sources", "", "What `ffalm data` and `ffalm data describe NAME` show. Chosen with `--data NAME`; "
             "settings with `--set data.SETTING=VALUE`."]  # fmt: skip
    for name in SOURCES:
        cls: Any = source_class(name)
        lines += ["", f"## {name}", "", f"{_cell(cls.about)}; {_cell(cls.asks)}", ""]
        paragraphs = inspect.cleandoc(cls.__doc__).split("\n\n")
        lines += [*(line for text in paragraphs for line in (_cell(text), "")), *_settings_table(settings_of(cls))]
    return "\n".join(lines) + "\n"


def _settings_table(settings: Any, flag: bool = False) -> list[str]:
    if not settings:
        return ["It has no settings."]
    lines = ["| setting | takes | default | meaning |" + " flag |" * flag, "|---|---|---|---|" + "---|" * flag]
    for one in settings:
        default = one.shown_default
        cells = [f"`{one.name}`", one.takes, f"`{default}`" if default else "", one.help]
        cells += [f"`{one.flag}`" if one.flag else ""] if flag else []
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _cell(text: str) -> str:
    """A text in one line; `<` is escaped outside of code, where Markdown leaves it as it is."""
    pieces = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(piece if place % 2 else piece.replace("<", "&lt;") for place, piece in enumerate(pieces))


def _plain(text: str) -> str:
    return text.replace("\b", "").replace("\f", "").strip()


def _assigned(values: dict[str, Any]) -> str:
    return ", ".join(f"`{name} = {value}`" for name, value in values.items()) or "the defaults"


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/settings.md": settings_page,
    "reference/algorithms.md": algorithms_page,
    "reference/data.md": data_page,
}
