"""Checks a source tree against rules.py. `python3 tests/arch/arch.py [ROOT]` prints what it finds."""

import ast
import os
import re
import subprocess
import sys

import cmake
import cpp
import rules


class Tree:
    """The files of a checkout: tracked ones and new ones that git does not ignore."""

    def __init__(self, root):
        self.root = root
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"],
            capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            names = listed.stdout.split("\0")
        else:
            names = [os.path.relpath(os.path.join(folder, name), root)
                     for folder, _, files in os.walk(root) for name in files]
        self.files = sorted(n for n in set(names) if n and os.path.isfile(os.path.join(root, n)))

    def text(self, name):
        with open(os.path.join(self.root, name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def code(self, suffixes=rules.CODE_SUFFIXES):
        return [f for f in self.files
                if f.endswith(suffixes) and not f.startswith(rules.DATA_FOLDERS)]


def folder_of(name):
    """The unit of the rules: "coordinator/engine", "coordinator/main", "kernels", "tests" …"""
    parts = name.split("/")
    if parts[0] in rules.LAYERS:
        return f"{parts[0]}/{parts[1]}" if len(parts) > 2 else f"{parts[0]}/main"
    return parts[0]


def _layer(folder):
    side, _, name = folder.partition("/")
    for index, row in enumerate(rules.LAYERS.get(side, [])):
        if name in row:
            return index
    return None


def arrow_allowed(source, target):
    """May a file of folder `source` include a header of folder `target`?"""
    if source == target or source == "tests":
        return True
    side, target_side = source.split("/")[0], target.split("/")[0]
    if target == "kernels":
        return source in rules.KERNEL_USERS
    if target_side not in rules.SIDES.get(side, set()):
        return False
    if side != target_side:
        return True
    if target in rules.LEAVES:
        return source in rules.LEAVES[target]
    if source in rules.LEAVES:
        return False
    here, there = _layer(source), _layer(target)
    return here is not None and there is not None and here < there


def check_arrows(tree):
    known = set(tree.files)
    for name in tree.code(rules.CPP_SUFFIXES):
        source = folder_of(name)
        for line, path, quoted in cpp.includes(tree.text(name)):
            where = f"{name}:{line}"
            if path.startswith(".") or "/../" in path:
                yield f"{where}: includes are relative to the project's root, not \"{path}\""
            elif path in known:
                target = folder_of(path)
                if name.endswith("_test.cc") and path.startswith("tests/"):
                    continue
                if not arrow_allowed(source, target):
                    yield f"{where}: {source} must not include {target} ({path})"
            elif quoted and ("/" not in path or path.split("/")[0] in rules.SIDES):
                yield f"{where}: no such header in the project: \"{path}\""


def check_externals(tree):
    for name in tree.code(rules.CPP_SUFFIXES):
        if name.startswith("tests/"):
            continue
        for line, path, _ in cpp.includes(tree.text(name)):
            for what, pattern, folders in rules.EXTERNALS:
                allowed = any(name == f or name.startswith(f + "/") for f in folders)
                if re.match(pattern, path) and not allowed:
                    yield f"{name}:{line}: {what} is not for this folder ({path})"
            if name.endswith(".h") and re.match(rules.NOT_IN_HEADERS, path):
                yield f"{name}:{line}: too heavy for a header ({path})"


def check_unknown_folders(tree):
    for name in tree.code(rules.CPP_SUFFIXES):
        folder = folder_of(name)
        if folder.split("/")[0] in rules.LAYERS and folder not in rules.LEAVES:
            if _layer(folder) is None:
                yield f"{name}: folder {folder} has no place in tests/arch/rules.py"


def kernel_of(name):
    """"kernels/linear" for a file of kernels/, whose folders are no units of the other rules."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "kernels" and len(parts) > 2 else folder_of(name)


def _dependencies(tree, unit=folder_of):
    graph = {}
    known = set(tree.files)
    for name in tree.code(rules.CPP_SUFFIXES):
        source = unit(name)
        if name.startswith("tests/") or re.search(r"_test\.cc$|_test\.cu$", name):
            continue
        for _, path, _ in cpp.includes(tree.text(name)):
            if path in known and unit(path) != source:
                graph.setdefault(source, set()).add(unit(path))
    return graph


def check_cycles(tree):
    graph = _dependencies(tree, kernel_of)
    done = set()

    def visit(folder, path):
        if folder in path:
            yield "folders include each other: " + " -> ".join(path[path.index(folder):] + [folder])
        elif folder not in done:
            for target in sorted(graph.get(folder, ())):
                yield from visit(target, path + [folder])
            done.add(folder)

    for folder in sorted(graph):
        yield from visit(folder, [])


def check_cmake(tree):
    """What a folder includes is among the dependencies that its library declares."""
    libraries = cmake.libraries(tree)
    graph = _dependencies(tree)
    for folder, targets in sorted(graph.items()):
        library = folder.replace("/", "_")
        if library not in libraries:
            continue
        reach = cmake.closure(libraries, library)
        for target in sorted(targets):
            name = target.replace("/", "_")  # kernels may be one library or several
            if not any(r == name or r.startswith(f"{name}_") for r in reach):
                yield f"{folder}/CMakeLists.txt: includes {target} but DEPS do not name it"


def check_file_sizes(tree):
    for name in tree.code():
        lines = tree.text(name).count("\n")
        limit = rules.MAX_FILE_LINES
        if os.path.basename(name) == "main.cc":
            limit = rules.MAX_MAIN_LINES
        if lines > limit:
            yield f"{name}: {lines} lines, at most {limit}"


def warn_file_sizes(tree):
    for name in tree.code():
        lines = tree.text(name).count("\n")
        if rules.WARN_FILE_LINES < lines <= rules.MAX_FILE_LINES:
            yield f"{name}: {lines} lines; aim at {rules.WARN_FILE_LINES}"


def check_function_sizes(tree):
    for name in tree.code(rules.CPP_SUFFIXES):
        kernel = name.startswith("kernels/") and not name.endswith("_test.cc")
        limit = rules.MAX_KERNEL_LINES if kernel else rules.MAX_FUNCTION_LINES
        for first, last, head in cpp.functions(tree.text(name)):
            if last - first + 1 > limit:
                yield f"{name}:{first}: {last - first + 1} lines, at most {limit}: {head[:60]}"
    for name in tree.code((".py",)):
        for node in ast.walk(ast.parse(tree.text(name))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = node.end_lineno - node.lineno + 1
                if size > rules.MAX_FUNCTION_LINES:
                    yield (f"{name}:{node.lineno}: {size} lines, "
                           f"at most {rules.MAX_FUNCTION_LINES}: {node.name}")


def check_readmes(tree):
    folders = {os.path.dirname(f) for f in tree.code() if not f.endswith(".cmake")}
    folders |= {d for d in rules.TOP_LEVEL if "." not in d and d != "LICENSE"}
    for folder in sorted(folders - {"", ".ci"}):
        if folder.startswith("proto/"):
            continue
        if f"{folder}/README.md" not in tree.files:
            yield f"{folder}: no README.md"


def check_top_level(tree):
    names = {f.split("/")[0] for f in tree.files}
    for name in sorted(names - rules.TOP_LEVEL):
        if not name.startswith("."):
            yield f"{name}: not in the agreed top level"
    for name in sorted(rules.TOP_LEVEL - names):
        yield f"{name}: missing from the top level"


def check_words(tree):
    for name in tree.code():
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            match = re.search(rules.FORBIDDEN_WORDS, line)
            if match:
                yield f"{name}:{number}: {match.group(0)} is a promise or a hole"


def check_third_party(tree):
    for name in tree.files:
        if rules.THIRD_PARTY_FOLDERS & set(name.split("/")[:-1]) or name == ".gitmodules":
            yield f"{name}: no third-party files"
    for name in tree.code():
        for line in tree.text(name).splitlines()[:12]:
            if re.search(rules.THIRD_PARTY_TEXT, line) and not name.startswith("tests/arch/"):
                yield f"{name}: someone else's notice: {line.strip()[:60]}"


CHECKS = [
    check_arrows, check_externals, check_unknown_folders, check_cycles, check_cmake,
    check_file_sizes, check_function_sizes, check_readmes, check_top_level, check_words,
    check_third_party,
]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../..")
    tree = Tree(os.path.abspath(root))
    errors = [f"error: {e}" for check in CHECKS for e in check(tree)]
    for line in [f"warning: {w}" for w in warn_file_sizes(tree)] + errors:
        print(line)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
