"""Tests that mount disks or lay cables do so in namespaces of their own."""

import os
import subprocess
import sys

INSIDE = "ROOTSTOCK_TEST_INSIDE_NAMESPACES"


def unshare(*kinds):
    """The command that runs another in new namespaces of these kinds ("--net", "--mount")."""
    command = ["unshare", *kinds]
    # In a chroot whose root is no mount point mounts can't be made private.
    if "--mount" in kinds and os.geteuid() == 0 and subprocess.run(
            ["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        command += ["--propagation", "unchanged"]
    return command


def enter(*kinds):
    """From setUpModule: this process, once more, in new namespaces of these kinds.
    Root needs no user namespace (a chroot has none to give)."""
    if INSIDE in os.environ:
        return
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe("unshare", [*unshare(*as_root, *kinds), *sys.orig_argv], {**os.environ, INSIDE: "1"})
