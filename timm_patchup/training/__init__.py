"""Training on Accelerate: ``accelerate launch -m timm_patchup.training --recipe NAME``.

``cli.py`` reads the call, ``build.py`` makes the parts, ``learner.py`` makes an update with them and ``loop.py`` a run,
``checkpoint.py`` and ``run_folder.py`` keep what was made.
"""
