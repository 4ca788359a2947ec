"""Just enough C++ reading for the architecture test: includes and the extent of functions."""

import re

_INCLUDE = re.compile(r'^\s*#\s*include\s*(<([^>]+)>|"([^"]+)")', re.M)
_TOKENS = re.compile(
    r'R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # not the digit separator of 1'000
    r"|//[^\n]*"
    r"|/\*.*?\*/",
    re.S,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)
_SCOPE = re.compile(r"\b(namespace|class|struct|enum|union|concept)\b|^\s*extern\s*$")


def includes(text):
    """[(line, path, quoted)] of every #include in `text`."""
    return [
        (text.count("\n", 0, m.start()) + 1, m.group(2) or m.group(3), m.group(3) is not None)
        for m in _INCLUDE.finditer(text)
    ]


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def strip(text):
    """`text` with comments, literals and directives blanked; every line keeps its number."""
    return _DIRECTIVE.sub(_blank, _TOKENS.sub(_blank, text))


def _outside_parentheses(head):
    depth, kept = 0, []
    for char in head:
        depth += (char == "(") - (char == ")")
        if depth == 0:
            kept.append(char)
    return "".join(kept)


def _opens_function(head):
    if ")" not in head:
        return False
    bare = _outside_parentheses(head)
    if _SCOPE.search(re.sub(r"\btemplate\s*<[^{};]*>", "", bare)) and "operator" not in bare:
        # A class whose head has parentheses (alignas, attributes), or a function that returns
        # `struct T`: only the first ends without a parameter list.
        return bool(re.search(r"\)\s*(const|noexcept|override|final|mutable|\s|&)*$", head)) and (
            not re.search(r"\b(namespace|class|enum|union)\b", bare)
        )
    return not re.search(r"(?<![=!<>+\-*/%&|^])=(?!=)", re.sub(r"operator\s*[^\s)\w]+", "", bare))


def functions(text):
    """[(first line, last line, head)] of every outermost function body in `text`."""
    code = strip(text)
    found, stack, start = [], [], 0
    function_depth = None
    for match in re.finditer(r"[{};]", code):
        char, at = match.group(0), match.start()
        if char == "{":
            head = code[start:at]
            if function_depth is None and _opens_function(head):
                function_depth = len(stack)
                first = start + len(head) - len(head.lstrip())
                found.append([code.count("\n", 0, first) + 1, None, " ".join(head.split())])
            stack.append(at)
        elif char == "}" and stack:
            stack.pop()
            if function_depth == len(stack):
                found[-1][1] = code.count("\n", 0, at) + 1
                function_depth = None
        start = match.end()
    return [tuple(f) for f in found if f[1] is not None]
