"""The house stays small: ceilings that only go down."""

from pathlib import Path

import house

MAX_LINES_OF_A_FILE = 500
MAX_FILES_OF_ONE_PREDICT = 58
MAX_SHARED_CLASS_NAMES = 3


def test_no_product_file_is_longer_than_five_hundred_lines() -> None:
    files = [file for own in house.product_files().values() for file in own]

    assert files
    assert [it for it in files if house.num_lines([it]) > MAX_LINES_OF_A_FILE] == []


def test_one_warm_predict_crosses_few_files() -> None:
    crossed = house.files_of_one_predict()

    assert house.ROOT / "model" / "nunatak_model" / "forward.py" in crossed
    assert len(crossed) <= MAX_FILES_OF_ONE_PREDICT, sorted(map(Path.as_posix, crossed))


def test_few_class_names_stand_in_two_packages() -> None:
    assert len(house.shared_class_names()) <= MAX_SHARED_CLASS_NAMES
