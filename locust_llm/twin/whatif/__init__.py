"""What if: a grid of loads and settings on a twin, judged by rules, with what is uncertain and what is extrapolated.

Read grid.py first: what is asked. work.py asks it over all cores, limits.py says what a twin cannot tell, judged.py holds
rules against answers, choice.py finds the best and the run that would decide.
"""
