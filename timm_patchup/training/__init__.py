"""Training on Accelerate: ``accelerate launch -m timm_patchup.training --recipe NAME``.

``cli.py`` reads the call, ``build.py`` makes the parts, ``loop.py`` trains, ``checkpoint.py`` and ``run_folder.py``
keep what was made.
"""
