# Sourced by the other scripts: creates .venv with all dependencies, unless it is up to date.
# Needs only Python 3.11+ and, on a Debian machine without venv support, root to install that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\033[2m%s\033[0m\n' "$*" >&2; }

need_system_package() { # command, Debian package
  command -v "$1" >/dev/null 2>&1 && return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    say "installing $2 (for $1)"
    apt-get install -y -qq "$2" >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq "$2"; } >/dev/null
  else
    say "note: $1 is missing and only root can install it (Debian: apt-get install $2); continuing without it"
  fi
}

make_venv() {
  local python
  python=$(command -v python3.11 || command -v python3)
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "weft needs Python 3.11 or later, but $python is older"; exit 3; }
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then need_system_package ensurepip-is-missing python3-venv; fi
  "$python" -m venv .venv
}

VENV_STAMP=.venv/weft-stamp
wanted=$(cat pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1)
if [ "$(cat $VENV_STAMP 2>/dev/null || true)" != "$wanted" ]; then
  [ -x .venv/bin/python ] || make_venv
  say "installing dependencies into .venv (first time: a few minutes)"
  # Install torch first and pinned: as a dependency of another package, pip would install the CUDA build.
  .venv/bin/pip install -q --disable-pip-version-check -c constraints.txt torch
  .venv/bin/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
  echo "$wanted" > $VENV_STAMP
fi
export PATH="$PWD/.venv/bin:$PATH"
