"""Command lines that once ended in a traceback, a hang or a wrong exit code; `HERE` is the folder of files."""

from __future__ import annotations

_DEEP = "[" * 3000 + "]" * 3000
_INLINE = "{a=" * 900 + "1" + "}" * 900
_DIGITS = "9" * 4400
_LONG = "x" * 300
_DEMO = "federate init HERE/new --demo census --rows 300"

COMMANDS = tuple(
    line.split()
    for line in (
        "run --set algorithms=1e308",
        "run --set algorithms=true",
        "run --set algorithms.ffalm=1",
        "run --set algorithms.ffalm.preset=[-1]",
        "run --set algorithms.ffalm.preset={a=1}",
        "run --set algorithms.ffalm.name=['x']",
        "run --set model.name=5e-324",
        "run --set model.name.x=1",
        "run --set data=yes",
        "run --set data.source=['x']",
        "run --set data.name=x",
        "run --set plugins=-1",
        "run --set plugins=[1]",
        "run --set plugins=1979-05-27",
        "run --set engine=[1e308]",
        "run --set rules=no",
        f"run --set training.lr={_DEEP}",
        f"run --set training.lr={_INLINE}",
        f"run --set seeds={_DIGITS}",
        f"run --set training.lr=1{'0' * 400}",
        f"run --set data.rows=1{'0' * 400}",
        "run --set data.rows=1000000000000",
        "run --set workers=1000000000",
        "run --set model.hidden=[1000000000]",
        "run --set training.lr=1e308",
        "run --noise 0",
        "run --noise 1e308",
        "run --rounds 1000000000 --quiet",
        "compare --seeds 1000000000",
        f"run --config {_LONG}",
        "run --config /dev/full",
        "run --config /dev/zero",
        "run --config HERE/pipe",
        "run --config HERE/deep.toml",
        "run --config HERE/digits.toml",
        "run --config HERE/types.toml",
        f"run --plugin {_LONG}",
        "run --plugin HERE/good.toml",
        "run --plugin HERE/exits.py",
        "run --plugin HERE/raises.py",
        "run --plugin \x1b]0;title\x07",
        f"run --out {_LONG}",
        "run --label \udcff --data HERE/good.csv --group sex",
        "data check --set data=1e308",
        "data check --set data=[1]",
        "data check --set data.source=0",
        "data check --set data.source=[]",
        "data check --set training.lr=1",
        f"report {_LONG}",
        "report /",
        "report \udcff",
        f"federate status {_LONG}",
        f"federate stop {_LONG}",
        f"federate run {_LONG}",
        f"federate site {_LONG}",
        "federate init /dev/null --demo census --rows 300",
        f"{_DEMO} --set rules=no",
        f"{_DEMO} --set algorithm=1",
        f"{_DEMO} --set sites=3",
        f"{_DEMO} --set plugins=3",
        "federate init HERE/new --demo census --sites 9223372036854775807",
        f"federate init HERE/new --demo census --sites {_DIGITS}",
        f"federate init {_LONG} --sites a,b",
    )
)
