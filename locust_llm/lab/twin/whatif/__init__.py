"""What-if: predicts a grid of loads and settings with a twin, with rules, uncertainty and
extrapolation.

Read first: whatif_grid.py (the questions, and what a twin cannot predict), then whatif_rows.py (the
answers).
"""
