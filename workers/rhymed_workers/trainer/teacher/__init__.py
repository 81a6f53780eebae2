"""The teacher of distillation: log-probs of the policy's own responses under another model or another prompt."""
