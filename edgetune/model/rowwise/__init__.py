"""Whether the rows of a dimension are kept apart, so that padding it is exact.

proof.py       follows the rows through the graph, node by node
facts.py       what a rule is told, and what it answers
rules.py       operator -> rule
arithmetic.py  rules for operators that compute
moving.py      rules for operators that move values, or work along some axes
"""
