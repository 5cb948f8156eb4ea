"""Published statistics of UCI Adult, 32,561 people of the 1994 census: shares and correlations, no rows.

Every statistic is given for the four cells of `CELLS`. Shares are rounded to three digits, so those of a column sum to
one only approximately and must be normalised. The order of the categories matters: correlations are between ranks in
these orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shares = tuple[float, float, float, float]
Band = tuple[int, int]

#: The cells as (group, label): women and men, earning up to 50K and over, with their shares of all.
CELLS = ((0, 0), (0, 1), (1, 0), (1, 1))
CELL_SHARES: Shares = (0.2946, 0.0362, 0.4646, 0.2046)

#: Age in years, in bands with both ends.
AGE: dict[Band, Shares] = {
    (17, 21): (0.156, 0.003, 0.107, 0.000),
    (22, 25): (0.134, 0.025, 0.124, 0.012),
    (26, 30): (0.137, 0.107, 0.151, 0.066),
    (31, 35): (0.116, 0.153, 0.146, 0.127),
    (36, 40): (0.109, 0.194, 0.117, 0.173),
    (41, 45): (0.095, 0.172, 0.100, 0.178),
    (46, 50): (0.081, 0.138, 0.074, 0.165),
    (51, 55): (0.059, 0.094, 0.057, 0.125),
    (56, 60): (0.041, 0.066, 0.050, 0.079),
    (61, 65): (0.034, 0.025, 0.035, 0.043),
    (66, 78): (0.037, 0.023, 0.038, 0.031),
}

#: Marital status with relationship, by stage of life; drawn as one, so that they never contradict each other.
HOUSEHOLD: dict[tuple[str, str], Shares] = {
    ("Never-married", "Own-child"): (0.202, 0.009, 0.166, 0.003),
    ("Never-married", "Other-relative"): (0.023, 0.002, 0.025, 0.001),
    ("Never-married", "Not-in-family"): (0.194, 0.121, 0.160, 0.042),
    ("Never-married", "Unmarried"): (0.060, 0.008, 0.019, 0.002),
    ("Separated", "Own-child"): (0.006, 0.000, 0.003, 0.000),
    ("Separated", "Other-relative"): (0.003, 0.001, 0.001, 0.000),
    ("Separated", "Not-in-family"): (0.016, 0.007, 0.014, 0.006),
    ("Separated", "Unmarried"): (0.039, 0.007, 0.004, 0.002),
    ("Married-spouse-absent", "Own-child"): (0.003, 0.000, 0.001, 0.000),
    ("Married-spouse-absent", "Other-relative"): (0.001, 0.001, 0.002, 0.000),
    ("Married-spouse-absent", "Not-in-family"): (0.007, 0.006, 0.008, 0.003),
    ("Married-spouse-absent", "Unmarried"): (0.009, 0.003, 0.002, 0.000),
    ("Divorced", "Own-child"): (0.015, 0.005, 0.011, 0.001),
    ("Divorced", "Other-relative"): (0.007, 0.002, 0.003, 0.001),
    ("Divorced", "Not-in-family"): (0.112, 0.085, 0.067, 0.031),
    ("Divorced", "Unmarried"): (0.126, 0.060, 0.017, 0.009),
    ("Married-civ-spouse", "Own-child"): (0.004, 0.007, 0.003, 0.001),
    ("Married-civ-spouse", "Other-relative"): (0.005, 0.007, 0.005, 0.002),
    ("Married-AF-spouse", "Spouse"): (0.001, 0.005, 0.000, 0.001),
    ("Married-civ-spouse", "Spouse"): (0.085, 0.626, 0.481, 0.888),
    ("Widowed", "Other-relative"): (0.006, 0.000, 0.000, 0.000),
    ("Widowed", "Not-in-family"): (0.044, 0.022, 0.005, 0.003),
    ("Widowed", "Unmarried"): (0.031, 0.017, 0.003, 0.003),
}

#: Education with its years as the census counts them.
EDUCATION: dict[tuple[str, int], Shares] = {
    ("Preschool", 1): (0.002, 0.000, 0.002, 0.000),
    ("1st-4th", 2): (0.005, 0.000, 0.008, 0.001),
    ("5th-6th", 3): (0.009, 0.002, 0.016, 0.002),
    ("7th-8th", 4): (0.017, 0.001, 0.030, 0.006),
    ("9th", 5): (0.014, 0.004, 0.023, 0.003),
    ("10th", 6): (0.030, 0.003, 0.038, 0.009),
    ("11th", 7): (0.044, 0.007, 0.046, 0.008),
    ("12th", 8): (0.015, 0.003, 0.017, 0.004),
    ("HS-grad", 9): (0.330, 0.192, 0.374, 0.218),
    ("Some-college", 10): (0.272, 0.167, 0.218, 0.179),
    ("Assoc-voc", 11): (0.045, 0.057, 0.039, 0.044),
    ("Assoc-acdm", 12): (0.038, 0.047, 0.029, 0.031),
    ("Bachelors", 13): (0.133, 0.288, 0.123, 0.282),
    ("Masters", 14): (0.037, 0.152, 0.027, 0.117),
    ("Prof-school", 15): (0.005, 0.036, 0.007, 0.057),
    ("Doctorate", 16): (0.004, 0.042, 0.005, 0.038),
}

#: Occupation, roughly by how often it pays over 50K; "?" is unknown or none.
OCCUPATION: dict[str, Shares] = {
    "Priv-house-serv": (0.015, 0.001, 0.001, 0.000),
    "Other-service": (0.182, 0.043, 0.093, 0.013),
    "Handlers-cleaners": (0.017, 0.003, 0.074, 0.012),
    "?": (0.082, 0.044, 0.057, 0.021),
    "Farming-fishing": (0.007, 0.002, 0.054, 0.017),
    "Machine-op-inspct": (0.055, 0.017, 0.081, 0.035),
    "Adm-clerical": (0.242, 0.180, 0.062, 0.044),
    "Armed-Forces": (0.000, 0.000, 0.001, 0.000),
    "Transport-moving": (0.008, 0.008, 0.079, 0.047),
    "Craft-repair": (0.021, 0.017, 0.196, 0.136),
    "Sales": (0.122, 0.075, 0.099, 0.134),
    "Tech-support": (0.032, 0.038, 0.023, 0.036),
    "Protective-serv": (0.007, 0.008, 0.025, 0.030),
    "Prof-specialty": (0.118, 0.327, 0.076, 0.221),
    "Exec-managerial": (0.092, 0.237, 0.081, 0.253),
}

#: Class of employer of those whose occupation is known.
WORKCLASS: dict[str, Shares] = {
    "Without-pay": (0.001, 0.000, 0.001, 0.000),
    "Private": (0.798, 0.644, 0.751, 0.650),
    "State-gov": (0.048, 0.060, 0.037, 0.044),
    "Self-emp-not-inc": (0.036, 0.073, 0.105, 0.098),
    "Local-gov": (0.077, 0.137, 0.056, 0.071),
    "Federal-gov": (0.029, 0.050, 0.023, 0.048),
    "Self-emp-inc": (0.011, 0.036, 0.028, 0.089),
}

#: Hours worked a week, in bands with both ends.
HOURS: dict[Band, Shares] = {
    (4, 19): (0.089, 0.042, 0.048, 0.010),
    (20, 25): (0.126, 0.068, 0.068, 0.011),
    (30, 34): (0.072, 0.045, 0.045, 0.010),
    (35, 39): (0.109, 0.107, 0.052, 0.034),
    (40, 40): (0.461, 0.424, 0.499, 0.412),
    (41, 49): (0.062, 0.098, 0.095, 0.144),
    (50, 50): (0.034, 0.119, 0.081, 0.171),
    (51, 59): (0.016, 0.034, 0.030, 0.062),
    (60, 60): (0.016, 0.041, 0.044, 0.090),
    (61, 88): (0.015, 0.023, 0.037, 0.057),
}

#: Capital income of the year: its kind, and a band of dollars with both ends.
CAPITAL: dict[tuple[str, int, int], Shares] = {
    ("none", 0, 0): (0.936, 0.681, 0.923, 0.689),
    ("loss", 600, 1499): (0.005, 0.003, 0.004, 0.005),
    ("loss", 1500, 1799): (0.014, 0.009, 0.015, 0.002),
    ("loss", 1800, 1999): (0.003, 0.051, 0.004, 0.077),
    ("loss", 2000, 2199): (0.001, 0.000, 0.006, 0.001),
    ("loss", 2200, 2599): (0.004, 0.023, 0.003, 0.016),
    ("gain", 600, 2999): (0.019, 0.000, 0.019, 0.000),
    ("gain", 3000, 4999): (0.011, 0.026, 0.020, 0.023),
    ("gain", 5000, 6999): (0.004, 0.010, 0.006, 0.016),
    ("gain", 7000, 9999): (0.000, 0.081, 0.000, 0.079),
    ("gain", 10000, 19999): (0.000, 0.082, 0.000, 0.062),
    ("gain", 20000, 30000): (0.000, 0.015, 0.000, 0.010),
    ("gain", 99999, 99999): (0.000, 0.019, 0.000, 0.021),
}

#: Race as the census coded it.
RACE: dict[str, Shares] = {
    "Other": (0.011, 0.005, 0.009, 0.003),
    "Amer-Indian-Eskimo": (0.011, 0.010, 0.011, 0.004),
    "Black": (0.153, 0.076, 0.084, 0.045),
    "White": (0.794, 0.872, 0.865, 0.914),
    "Asian-Pac-Islander": (0.032, 0.036, 0.030, 0.035),
}

#: Native country.
COUNTRY: dict[str, Shares] = {
    "Elsewhere": (0.102, 0.091, 0.115, 0.085),
    "United-States": (0.898, 0.909, 0.885, 0.915),
}

#: The columns in the order of `CORRELATIONS`.
COLUMNS: dict[str, Mapping[Any, Shares]] = {
    "age": AGE,
    "household": HOUSEHOLD,
    "education": EDUCATION,
    "occupation": OCCUPATION,
    "workclass": WORKCLASS,
    "hours": HOURS,
    "capital": CAPITAL,
    "race": RACE,
    "country": COUNTRY,
}

#: For each cell, what lies below the diagonal of the correlations between columns. They are those of normal
#: variables that, cut into the categories above, show the rank correlations counted among people of the cell.
#: Without them education, occupation and hours would each tell income anew, and guessing would be too easy.
CORRELATIONS: tuple[tuple[tuple[float, ...], ...], ...] = (
    (
        (),
        (0.68,),
        (-0.02, -0.09),
        (0.04, 0.00, 0.44),
        (0.22, 0.13, 0.26, 0.25),
        (0.16, 0.13, 0.17, 0.22, 0.14),
        (0.12, 0.11, 0.09, 0.09, 0.08, 0.04),
        (-0.06, -0.03, 0.13, 0.09, -0.06, 0.01, 0.01),
        (-0.05, -0.06, 0.17, 0.16, 0.06, -0.05, 0.03, -0.31),
    ),
    (
        (),
        (0.13,),
        (-0.03, -0.31),
        (0.00, -0.18, 0.38),
        (0.25, 0.06, 0.16, 0.12),
        (-0.06, -0.29, 0.23, 0.22, 0.06),
        (0.11, -0.14, 0.13, 0.06, 0.05, 0.00),
        (0.03, 0.06, -0.03, 0.01, -0.04, -0.08, -0.08),
        (0.00, -0.13, 0.10, 0.16, -0.07, 0.04, 0.08, -0.69),
    ),
    (
        (),
        (0.66,),
        (-0.01, -0.04),
        (0.14, 0.17, 0.37),
        (0.25, 0.20, 0.17, 0.26),
        (0.09, 0.23, 0.09, 0.21, 0.13),
        (0.15, 0.13, 0.03, 0.08, 0.05, 0.05),
        (0.04, 0.06, 0.16, 0.13, 0.01, 0.03, 0.04),
        (0.03, -0.02, 0.20, 0.12, 0.11, 0.03, 0.03, -0.38),
    ),
    (
        (),
        (0.28,),
        (0.01, -0.08),
        (0.00, -0.02, 0.41),
        (0.16, 0.07, 0.13, 0.16),
        (-0.16, -0.07, 0.07, 0.13, 0.06),
        (0.09, -0.11, 0.16, 0.09, 0.06, 0.08),
        (-0.03, 0.05, 0.16, 0.08, 0.00, 0.03, 0.00),
        (0.04, 0.03, -0.13, 0.01, -0.01, 0.03, -0.01, -0.69),
    ),
)
