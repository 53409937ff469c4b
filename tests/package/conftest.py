"""Archives and an index for all tests of this folder, built once."""

from collections.abc import Iterator

import pytest

from harness.package.archives import Archives, build, index_of


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return build(tmp_path_factory.mktemp("archives"))


@pytest.fixture(scope="session")
def index(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with index_of(archives, tmp_path_factory.mktemp("index")) as url:
        yield url
