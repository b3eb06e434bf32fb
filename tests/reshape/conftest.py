"""What is explored here: how much is a matter of the machine and of `SEAWEEDQ_TEST_RESHAPE`, a factor (1 in the suite).

Hypothesis has no deadlines: how long an example takes says more of the machine than of the code.
"""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).parent.parent / "broker"))  # brokers in the test's own loop

settings.register_profile("seaweedq", deadline=None)
settings.load_profile("seaweedq")
