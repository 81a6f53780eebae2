"""What workers run: rollout, reward, training."""
