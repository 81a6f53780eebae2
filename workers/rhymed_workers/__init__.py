"""What workers run: rollout, reward, training."""

import os

# Engine and trainer share the cores of a small machine, and threads that spin at OpenMP's barriers take them from
# each other: next to a busy process a training step took four times as long. Read once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
