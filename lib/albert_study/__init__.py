"""The study: experiments, tables, figures and the report, built on the library `albert_lsh`, which never imports it."""
