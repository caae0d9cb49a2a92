"""The machine: files, threads, the network, and what must not leave it. Imports nothing of the package but errors."""
