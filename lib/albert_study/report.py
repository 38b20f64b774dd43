"""doc"""
from pathlib import Path
from albert_study.records import load
from albert_study.tables import studies_of
from albert_study import tables, experiment_tables as e
def document_tables(root, study=None):
    of_study = (tables.score_tables, tables.difference_tables, tables.switched_tables, tables.reading_tables, tables.shuffled_tables)
    common = (tables.front_tables, tables.library_tables, e.constant_tables, e.time_tables, e.efficiency_tables, e.pretraining_tables)
    common += (e.long_tables, e.masked_tables, e.detail_tables, e.reliability_tables)
    rows = load(root, study)
    named = [made for name in ([study] if study else studies_of(root)) for make in of_study for made in make(root, rows, name)]
    named += [made for make in common for made in make(root, rows)] if not study else []
    return {name: made for name, made in named if made.rows and len(made.titles) > 1}
