"""Guess a number: the policy reads higher or lower after each guess. A class as SkyRL-Gym's BaseTextEnv."""

import re

LIMIT = 6  # guesses
LEAST, MOST = 1, 20


class Game:
    def __init__(self, env_config, extras):
        self.secret = extras["secret"]
        self.least, self.most = LEAST, MOST
        self.guesses = self.sensible = 0

    def init(self, prompt):
        return prompt, {}

    def step(self, action):
        number = re.search(r"\d+", action)
        guess = int(number.group()) if number else None
        self.guesses += 1
        self.sensible += guess is not None and self.least <= guess <= self.most
        if guess == self.secret:
            return self.end(1.0 - 0.1 * (self.guesses - 1))
        if self.guesses == LIMIT:
            return self.end(0.3 * self.sensible / LIMIT)
        return {"observations": [{"role": "user", "content": self.hint(guess)}], "reward": 0.0, "done": False}

    def hint(self, guess):
        if guess is None:
            return "Answer with a number."
        if guess < self.secret:
            self.least = max(self.least, guess + 1)
            return "higher"
        self.most = min(self.most, guess - 1)
        return "lower"

    def end(self, reward):
        return {"observations": [], "reward": reward, "done": True}
