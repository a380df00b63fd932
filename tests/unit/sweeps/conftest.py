"""Worker processes are told this process's path, so what lies in this folder they can import by its name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
