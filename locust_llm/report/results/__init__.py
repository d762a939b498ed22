"""Results: what the analysis found, as frozen data that documents, plots and exports show."""
