"""The critic of PPO: a second model that estimates which reward to expect after every token."""
