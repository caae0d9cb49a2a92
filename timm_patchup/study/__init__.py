"""Studies: the runs behind a table of the paper, and their results next to its numbers. Definitions are YAML.

Imports ``training`` (to time updates), ``evaluation``, ``runs`` and the layers below them.
"""

from .definition import Condition, Run, Study, list_studies, load_study

__all__ = ["Condition", "Run", "Study", "list_studies", "load_study"]
