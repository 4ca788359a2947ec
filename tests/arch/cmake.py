"""Reads the rootstock_library calls of a tree: which library depends on which."""

import re

_CALL = re.compile(r"rootstock_library\s*\(([^)]*)\)", re.S)


def libraries(tree):
    """{library: set of declared DEPS}."""
    found = {}
    for name in tree.files:
        if not name.endswith("CMakeLists.txt"):
            continue
        text = re.sub(r"#[^\n]*", "", tree.text(name))
        for call in _CALL.finditer(text):
            words = call.group(1).split()
            deps = words[words.index("DEPS") + 1:] if "DEPS" in words else []
            if "SOURCES" in deps:
                deps = deps[:deps.index("SOURCES")]
            found[words[0]] = set(deps)
    return found


def closure(graph, start):
    """Every library that `start` reaches through declared dependencies."""
    seen, queue = set(), [start]
    while queue:
        for target in graph.get(queue.pop(), ()):
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return seen
