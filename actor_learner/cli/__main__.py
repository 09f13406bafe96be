"""`python -m actor_learner.cli`."""

import sys

from actor_learner.cli import main

sys.exit(main())
