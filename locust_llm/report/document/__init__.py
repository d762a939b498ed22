"""Document: the sections of a report as plain blocks: headings, tables, sentences, charts; rendered by text.py and html.py.

Read first: blocks.py (what a section is made of), then document.py (the sections in their order).
May use: report/analysis, report/plots, probe, core, slo.
"""
