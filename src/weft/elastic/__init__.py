"""Who gets how many workers: allocation policies, placement, restart cost.

>>> policy_named("balanced").name
'balanced'
"""

from weft.elastic.registry import POLICIES, policy_named
from weft.elastic.rules import Rules

__all__ = ["POLICIES", "Rules", "policy_named"]
