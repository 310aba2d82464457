# Sourced by the other scripts: where things are, and how the virtual environment comes to be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV=${VENV:-.venv}
TORCH_VERSION=${TORCH_VERSION-2.13.0}
TENSORFLOW_VERSION=${TENSORFLOW_VERSION-2.21.0}
JAX_VERSION=${JAX_VERSION-0.10.2}

say() { printf '\033[1m== %s\033[0m\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

# The interpreter: $PYTHON, else the first python3 that is new enough.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3} python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "Python 3.10 or newer is needed, found: $(${PYTHON:-python3} --version 2>&1 || true). Name one with: make PYTHON=/path/to/python3"
}

# Debian keeps the part of Python that fills a virtual environment in a package of its own.
make_venv() {
  local python=$1
  "$python" -m venv "$VENV" && return
  rm -rf "$VENV"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing python3-venv"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
    "$python" -m venv "$VENV" && return
  fi
  fail "$python can't make a virtual environment. On Debian: sudo apt-get install python3-venv"
}

ensure_venv() {
  if [ ! -x "$VENV/bin/pip" ]; then
    local python
    python=$(find_python) # on a line of its own, so that its failure ends the script
    say "making $VENV with $python"
    make_venv "$python"
  fi
  command -v "${CXX:-c++}" >/dev/null || fail "A C++17 compiler is needed. On Debian: sudo apt-get install g++"
}

pip_install() { "$VENV/bin/pip" install --quiet --disable-pip-version-check ${TORCH_VERSION:+"torch==$TORCH_VERSION"} "$@"; }
