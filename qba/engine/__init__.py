"""The serving engine: `simulate` validates, runs the compiled loop and returns a dataset."""

from qba.engine.simulate import simulate

__all__ = ["simulate"]
