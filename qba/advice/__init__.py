"""What the policies would do to a trace of one's own: describing it, comparing policies, tuning QBA, and capacity.

Here a trace is replayed as it is, in one piece: its swings and bursts stay, and a queue is carried from one hour into the
next. Windows only serve to say how sure a figure is (`measures.estimate`).
"""

from qba.advice.sustained import capacity
from qba.advice.comparison import compare
from qba.advice.description import describe
from qba.advice.tuning import tune

__all__ = ["capacity", "compare", "describe", "tune"]
