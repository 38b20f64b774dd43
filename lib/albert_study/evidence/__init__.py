"""From the records of runs to tables, figures and the report."""
