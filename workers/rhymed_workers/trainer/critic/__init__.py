"""The critic of PPO: a second model that says what reward to expect after every token."""
