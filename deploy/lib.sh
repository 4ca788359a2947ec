# Sourced by the scripts of this folder and by tests/run.sh: where things are, and how to speak.
# Sets ROOT (the checkout), ROOTSTOCK_CACHE, VENV and TOOLS.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ROOTSTOCK_CACHE=${ROOTSTOCK_CACHE:-${HOME:-/root}/.cache/rootstock}
VENV=$ROOT/build/venv
TOOLS=$ROOT/build/tools
export ROOTSTOCK_CACHE

# Checkouts at different places share what ccache holds.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=include_file_ctime,include_file_mtime

say() { printf '\033[1m== %s\033[0m\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
# For a command line that can't be read; die is for all else.
misuse() {
  printf 'error: %s (see --help)\n' "$*" >&2
  exit 2
}

# needs OPTION WHAT VALUE: ends a script whose option came without its value.
needs() { [ -n "$3" ] || misuse "$1 needs $2"; }
# whole OPTION VALUE [MOST]: ends it where the value is no whole number from 1.
whole() {
  [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] && [ "$2" -le "${3:-999999999}" ] ||
    misuse "$1 $2: must be a whole number from 1${3:+ to $3}"
}
# preset_is_known NAME
preset_is_known() {
  grep -q "{\"name\": \"$1\", \"configurePreset\"" "$ROOT/CMakePresets.json" ||
    misuse "--preset $1: CMakePresets.json has no such preset"
}

# help_of FILE: the comment at the head of a script is its --help.
help_of() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$1"; }

# as_root COMMAND...: directly as root, else by sudo.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "'$*' needs root; run as root or install sudo"
  fi
}
