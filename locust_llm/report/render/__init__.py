"""Render: a document as HTML, Markdown and text for a console."""
