"""Lists every field of PEFT's LoraConfig, one a line, without importing PEFT.

    python3 list_peft_fields.py PEFT_PACKAGE_FOLDER > peft_lora_config_fields.txt

The folder holds config.py and tuners/lora/config.py, e.g. of an unpacked wheel
(`pip download --no-deps peft`).
"""

import ast
import pathlib
import sys


def fields(path, names):
    """Annotated attributes of the classes `names` in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name in names:
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield statement.target.id


def main():
    package = pathlib.Path(sys.argv[1])
    found = set(fields(package / "config.py", {"PeftConfigMixin", "PeftConfig"}))
    found |= set(fields(package / "tuners/lora/config.py", {"LoraConfig"}))
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main()
