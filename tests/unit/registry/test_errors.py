import nunatak_registry
from nunatak_registry import errors
from nunatak_registry.errors import RegistryError


def error_types() -> list[type[RegistryError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, RegistryError)
    ]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in error_types()]

    assert len(set(codes)) == len(codes)


def test_tree_in_the_docstring_names_every_error() -> None:
    tree = errors.__doc__ or ""

    assert [error.__name__ for error in error_types() if error.__name__ not in tree] == []


def test_package_exports_every_error() -> None:
    names = {error.__name__ for error in error_types()}

    assert names <= set(nunatak_registry.__all__)
