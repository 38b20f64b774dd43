"""SMYRF (Daras et al. 2020): `lsh` in which a key that is met in several rounds weighs in each, as published.

Rounds are merged by their log-sum-exp. The paper completes the norms with two largest norms, here it is one for both.
"""

from albert_lsh.attention.keys import Keys
from albert_lsh.attention.lsh import RoundsOfClusters


class Smyrf(RoundsOfClusters):
    name = "smyrf"
    description = "SMYRF: as lsh, but a key met in several rounds weighs several times, as published"
    smallest = fewest = 2

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        return super().choose_keys(query, key, mask, scaling, generator)._replace(clusters=None)
