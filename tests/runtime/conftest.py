import pytest
from delivery_kit import Place


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = Place(tmp_path, monkeypatch)
    yield made
    made.close()
