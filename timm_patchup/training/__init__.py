"""Training on Accelerate: ``python -m timm_patchup.training --recipe NAME``.

``run.py`` opens or resumes a run, ``loop.py`` trains it epoch by epoch, ``learner.py`` makes one update, ``build.py``
makes the parts of a learner from the recipe. Imports ``runs`` and the layers below it, never ``evaluation``.
"""
