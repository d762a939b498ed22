"""What a pipeline shows of a run: GitHub's annotations, summary page and outputs; a comment on a pull request."""
