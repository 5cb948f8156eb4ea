"""Values that nobody would type on purpose."""

from __future__ import annotations

import random
from typing import Any

_DIGITS = "9" * 4400

#: As TOML or a flag would have them.
TEXTS = (
    "1e308", "5e-324", "-1", "0", "1", "2", "no", "yes", "true", "false", "nan", "inf", "-inf", "[]", "['x']", "[-1]",
    "[[1]]", "{a = 1}", "{}", "'a\\nb'", "''", '""', '"\\u0000"', '"\\u001b[31m"', "x\ny = 1", "9223372036854775807",
    "-9223372036854775808", "1" + "0" * 400, _DIGITS, "1e400", "1e9", "1000000000", "100000000000000", "1979-05-27",
    "[" * 3000 + "]" * 3000, "{a=" * 900 + "1" + "}" * 900, "x" * 5000, "a/b", "..", ".", "/", "none", "None", "0.5",
    "[0, 0]", "[1, 2, 3]", "['a', 1]", "\u2603", "\udcff", "\x1b]0;title\x07", " ", "=", "[0.1, nan]", "[1e308]",
    "mlp", "census", "table", "ffalm", "fedavg", "safe", "auto", "cpu", "cuda", "meta", "cuda:99", "stacked", "best",
    "[true]", "0x10", "1_000", "+1", "07", "{source = 'census'}", "{name = 'mlp'}", "['fedavg']", "'fedavg'",
)  # fmt: skip

#: Names of files, most of which are no good; `{here}` is the folder of the fuzzer.
PATHS = (
    "{here}/good.toml", "{here}/good.csv", "{here}/good.py", "{here}/exits.py", "{here}/raises.py", "{here}/empty",
    "{here}/noise.bin", "{here}/folder", "{here}/missing", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem",
    "x" * 300, "x/" * 3000, "{here}/good.toml/below", "{here}/loop", "", ".", "/", "~nobody/x", "\udcff", "a\nb",
    "{here}/deep.toml", "{here}/digits.toml", "{here}/types.toml", "{here}/noise.csv", "{here}/folder.csv",
    "{here}/study", "{here}/study/runs", "{here}/study/config.toml", "/proc/none/x",
    "/proc/1/x", "{here}/new-{number}", "{here}/pipe", "{here}/none.py", "-", "http://x/y.csv",
)  # fmt: skip


#: Fairness targets, and conditions of an audit.
TARGETS = (
    "dpd <= 0.05", "eod <= 5 %, impact_ratio >= 0.8", "dpd<=0", "dpd <= 1e-400", "dpd <= nan", "dpd >= 0.1", "x <= 1",
    "dpd", "", ",", "dpd <= 0.1, dpd <= 0.2", "dpd <= -1", "dpd <= 101%", "accuracy >= 0.9", "dpd <= 0.05 and eod <= 1",
    "DPD <= 0.05", "dpd <= 1_0", "dpd <= \u0663", "dpd \u2264 0.1", "dpd <= 0.05%", "impact_ratio >= 1", "a\nb <= 1",
    "none", "worst_group_accuracy >= 0.5", "equalized_odds<=.1", "dpd <= 5%%", "dpd <= " + "9" * 5000,
    "dpd <=0.05;eod<=0.1",
)  # fmt: skip
CONDITIONS = (
    "dpd > 0.1", "accuracy < 0.5", "dpd > x", "x > 1", "", "dpd", "dpd >", "> 1", "dpd > nan", "dpd > 1e999",
    "sex.dpd > 0", "impact_ratio < 80%", "dpd >= 0.1 and eod > 0", "a\nb > 1", "dpd=0.1", "dpd == 0.1", "eod<0.5",
    "m.accuracy < 1",
)  # fmt: skip

#: What somebody might type.
_PLAIN = (
    "0", "1", "2", "3", "0.5", "0.1", "true", "false", "none", "[1, 2]", "[8]", "fedavg", "ffalm,fedavg", "mlp", "cpu",
    "linear", "census", "faces", "safe", "loop", "stacked", "iid", "even", "group", "best", "adam", "bf16", "1e-9",
)  # fmt: skip


def text(draws: random.Random) -> str:
    """A hostile text, sometimes a plausible one, now and then one of random characters."""
    if draws.random() < 0.35:
        return draws.choice(_PLAIN)
    if draws.random() < 0.1:
        characters = "abc019.-_=[]{}'\"\\,# \n\t\x00\x1b\u00e9\u2603\U0001f600"
        return "".join(draws.choices(characters, k=draws.randrange(12)))
    return draws.choice(TEXTS)


def path(draws: random.Random, here: str, number: int) -> str:
    """A hostile file name."""
    return draws.choice(PATHS).replace("{here}", here).replace("{number}", str(number))


def thing(draws: random.Random) -> Any:
    """A hostile Python value."""
    import numpy as np
    import pandas as pd
    import torch

    return draws.choice(
        (
            None, True, -1, 0, 1, 2, 10**9, 10**400, 0.5, float("nan"), float("inf"), 1e308, -0.0, "", "x", "1", b"x",
            (), [], {}, set(), [1], [None], ["a"], {"a": 1}, object(), int, len, np.int64(3), np.float32(0.5),
            np.uint64(2**63), np.nan, np.array(3), np.array([1, 2]), np.array(["a"]), torch.tensor(2), torch.zeros(3),
            pd.NA, pd.Timestamp(0), pd.Series([1, 2]), pd.DataFrame({"a": [1]}), complex(1, 1), range(3), ...,
            np.ma.masked, iter([1]), Exception("x"), "ffalm", "census", "mlp", "a\nb", "\x00", [[]], (1, 2, 3),
        )
    )  # fmt: skip
