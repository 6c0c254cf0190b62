"""Property tests try the same inputs at every run: a verdict is of the code alone. ``make fuzz`` tries new ones."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
