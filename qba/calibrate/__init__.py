"""Looking for the lost workload: which length distributions and horizon give the paper's numbers N01 to N17?

The paper's workload section is not in the text at hand, but seven operating points of its synthetic study are, with
fifteen mean waits and tails and two percentages. A `Family` of workloads has a few free parameters; `fit` moves them until the
simulated numbers meet the published ones, on common random numbers (`scipy.optimize.least_squares`). Of the percentages,
N16 is N12 and N15 again and is left out; N17 is the only row in which FCFS counts.

The rows share their seeds, here and in the paper: a load that is heavy by chance raises them all. So a fit weighs each
row by its own standard error, but its errors (`qba.identify`) keep the rows' correlation.
"""

from qba.calibrate.families import FAMILIES, Family
from qba.calibrate.search import FIT_SEEDS, FRESH_SEEDS, REFINING_SEEDS, Fit, Search, fit
from qba.calibrate.rows import PAPER, POINTS, ROWS, SCORED, Comparison, compare, servable, simulate_points

__all__ = [
    "FAMILIES",
    "FIT_SEEDS",
    "FRESH_SEEDS",
    "Family",
    "Fit",
    "PAPER",
    "POINTS",
    "REFINING_SEEDS",
    "ROWS",
    "SCORED",
    "Comparison",
    "Search",
    "compare",
    "fit",
    "servable",
    "simulate_points",
]
