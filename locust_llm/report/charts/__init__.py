"""Charts: what all charts share: plots as data, drawn by one script on pages and as SVG; the
server's charts; the timeline.

Read first: model.py (what a plot is), then timeline.py (requests line by line).
"""
