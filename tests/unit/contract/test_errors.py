from nunatak_contract import errors
from nunatak_contract.errors import ContractError


def test_tree_in_the_docstring_names_every_error_and_each_has_a_code_of_its_own() -> None:
    tree = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ContractError)
    ]

    assert [error.__name__ for error in tree if error.__name__ not in (errors.__doc__ or "")] == []
    assert len({error.code for error in tree}) == len(tree)
