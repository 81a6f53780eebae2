"""The rollout worker: generates samples and stores them."""
