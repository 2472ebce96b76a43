"""Command line: `python -m k8s.render`. With --check it only compares."""

from __future__ import annotations

import sys

from k8s.render.generated import main

sys.exit(main())
