"""Algorithms by name, without torch: what each name stands for, and how settings change it."""

from rhymed.algorithms.expand import SETTINGS as SETTINGS
from rhymed.algorithms.expand import expand as expand
from rhymed.algorithms.expand import uses as uses
from rhymed.algorithms.recipe import Recipe as Recipe
from rhymed.algorithms.table import ALGORITHMS as ALGORITHMS
