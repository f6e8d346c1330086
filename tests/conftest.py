"""One flag for all golden files, and the fixture that compares with them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine makes a single example slow; what is slow is measured in bench/.
settings.register_profile("partrain", deadline=None)
settings.load_profile("partrain")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew", action="store_true", help="rewrite the golden files; review them as a diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares a text with the file that keeps what is expected, or renews that file."""
    renew = request.config.getoption("--renew") or os.environ.get("PARTRAIN_RENEW") == "1"

    def compare(file: Path, text: str) -> None:
        if renew:
            file.write_text(text, encoding="utf-8")
        expected = file.read_text(encoding="utf-8") if file.exists() else ""
        assert text == expected, f"{file.name} differs; --renew accepts the new text"

    return compare
