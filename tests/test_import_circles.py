"""Import circles: there are none between files, at import time or later."""

import pytest

grimp = pytest.importorskip("grimp", reason="needs import-linter, of the extra lint")


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("locust_llm", exclude_type_checking_imports=True, cache_dir=None)
    open_imports = {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }
    while free := {module for module, imported in open_imports.items() if not imported}:
        open_imports = {
            module: imported - free
            for module, imported in open_imports.items()
            if module not in free
        }
    # what is left lies in a circle or leads to one
    assert sorted(open_imports) == []
