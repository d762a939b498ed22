"""What-if: a grid of loads and settings on a twin, with the rules that hold, what is uncertain and
what is extrapolated.

Read first: grid.py (what is asked, and what a twin cannot predict), then rows.py (the answers).
"""
