"""What the package asks of the machine it runs on: files, threads, the network, and what must not leave it.

Imports nothing of this package but ``errors``.
"""
