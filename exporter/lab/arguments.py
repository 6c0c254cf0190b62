"""What no argument of the lab can be."""

import argparse
import math


def refuse_infinite(arguments: argparse.Namespace) -> None:
    """Refuse numbers that are none or never end: argparse reads nan and inf, and comparisons let them through.

    Raises:
        ValueError: names the argument.
    """
    for name, value in vars(arguments).items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"--{name.replace('_', '-')} must be a finite number, not {number:g}")
