"""Records: results of other load testers that have a row for each request, as records of ours; a reader for each tool."""
