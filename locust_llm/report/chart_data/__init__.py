"""Chart data: plots as data, the server's charts among them, and the timeline, which is also SVG.

Begin with plot_data.py (a plot), then read timeline.py (requests line by line). static/draw_chart.js
draws the plots.
"""
