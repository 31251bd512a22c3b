"""Settings of all tests: fixed examples, no deadlines (a busy machine is no defect), strict array semantics."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from hypothesis import settings

settings.register_profile("foretell", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("foretell")
