"""Charts: what all charts share: plots as data, drawn by one script on pages and as SVG; the
server's charts; the timeline.

Begin with plot_data.py (a plot), then read timeline.py (requests line by line).
"""
