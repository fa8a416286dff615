"""tickrate: train neural policies on systems that do not wait.

Importing the package loads no torch, opens nothing, reads no file and starts no thread.
"""

__version__ = "0.1.0"
