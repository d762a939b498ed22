"""What-if: predicts a grid of loads and settings with a twin, with rules, uncertainty and
extrapolation.

Read first: grid.py (the questions, and what a twin cannot predict), then rows.py (the answers).
"""
