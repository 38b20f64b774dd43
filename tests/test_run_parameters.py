"""A notebook's parameters, whichever of its cells are executed, and in which order."""

import pytest

from albert_lsh.run import ParameterError, Run


def cells(names, parameters, *, first=True):
    """Set-up, parameters and the cell that checks them; `first` is False where the set-up is not executed again."""
    if first:
        names["before"] = {*names, "before"}
    names |= parameters
    run = Run.from_notebook(names, names["before"])
    names |= {"run": run, "sentence": "a later cell's", "losses": [0.5], "data": object()}
    return run


def test_a_misspelling_is_refused_however_often_the_cells_are_executed():
    names = {"display": print}
    assert cells(names, {"task": "mrpc", "seed": 1}).seed == 1
    assert cells(names, {"seed": 2}).seed == 2
    assert cells(names, {"seed": 3}, first=False).seed == 3
    for first in (True, False, True):
        with pytest.raises(ParameterError, match="'learning_rte' is not a parameter of glue.ipynb; did you mean"):
            cells(names, {"learning_rte": 1e-3}, first=first)
    assert cells(names, {"learning_rate": 1e-3}).learning_rate == 1e-3


def test_what_was_there_before_the_parameters_is_none_of_them():
    assert cells({"rounds": 3}, {"task": "mrpc"}).task == "mrpc"
    with pytest.raises(ParameterError, match="'rounds' is not a parameter of glue.ipynb; there are: "):
        cells({}, {"task": "mrpc", "rounds": 3})
