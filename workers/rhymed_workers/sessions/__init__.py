"""A sample as a session: its chat as tokens, what programs ask of the policy, and its turns joined to a sample."""
