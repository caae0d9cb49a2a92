"""Mixers in other frameworks' loops: one thin adapter per module, which alone imports its framework.

An adapter draws once per batch and refuses what would silently not be mixed; those for Lightning and transformers put
the state of the draws into the framework's own checkpoint. All maths stays in the mixer. ``README.md`` has an example
of each.
"""
