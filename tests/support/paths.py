"""Where the checkout is, for tests that read its README, recipes and scripts."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
