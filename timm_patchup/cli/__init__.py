"""The commands: the only modules that know flags and exit codes.

They may import every layer; only ``launch.py`` and the ``__main__`` modules import them. ``predict`` and ``timing``
belong to no layer and are started from here: ``python -m timm_patchup.cli.predict``.
"""
