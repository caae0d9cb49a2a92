"""Mixers in other frameworks' loops: one thin adapter per module, which alone imports its framework.

An adapter draws once per batch, puts the state of the draws into the framework's own checkpoint and refuses what would
silently not mix. All maths stays in the mixer: ``README.md`` next to this file has an example for each.
"""
