"""Studies: the runs that a table of the paper needs, run and put beside its numbers. Definitions are YAML."""

from .definition import Condition, Run, Study, list_studies, load_study

__all__ = ["Condition", "Run", "Study", "list_studies", "load_study"]
