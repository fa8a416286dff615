"""One computing thread for each process of the tests: two wait for each other where cores are shared."""

import os

# Read once, when torch and numpy are imported, and by the processes that tests start. The networks here are
# so small that a second thread gains nothing; on a busy machine it made a test of 1.5 s take a minute.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
