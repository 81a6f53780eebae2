"""Algorithms by name, without torch: what each name stands for, and how settings change it."""

from rhymed.core.algorithms.expand import SETTINGS as SETTINGS
from rhymed.core.algorithms.expand import expand as expand
from rhymed.core.algorithms.expand import uses as uses
from rhymed.core.algorithms.recipe import Recipe as Recipe
from rhymed.core.algorithms.table import ALGORITHMS as ALGORITHMS
