#!/usr/bin/env bash
# Usage: tools/install_packages.sh LIST...
# Installs the packages of each list (tools/packages.txt) that are missing. Asks for nothing. Of a line
# "a | b" any is enough; if none is there, the first that the system knows is installed. Where
# QUIRE_PACKAGES names a folder of tools/gather_packages.sh, the build takes them from there.
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: $0 LIST..." >&2; exit 2; }
names=$(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' -- "$@")
mapfile -t packages <<<"$names"

if [ -n "${QUIRE_PACKAGES:-}" ]; then
  if [ ! -d "$QUIRE_PACKAGES/usr" ]; then
    echo "packages: QUIRE_PACKAGES names '$QUIRE_PACKAGES', where nothing is unpacked" >&2
    exit 1
  fi
  echo "packages: those of $QUIRE_PACKAGES are used; nothing is installed"
  exit 0  # The build says if one is missing.
fi

if ! command -v dpkg-query >/dev/null; then
  echo "packages: not a Debian-like system, so nothing is installed; needed, under Debian's names:"
  printf '  %s\n' "${packages[@]}"
  exit 0  # They may be there under other names; if not, the build says which.
fi

is_installed() {
  local status
  status=$(dpkg-query -W -f '${db:Status-Status} ' "$1" 2>/dev/null || true)
  case " $status" in *" installed "*) return 0 ;; *) return 1 ;; esac
}

missing=()
for package in "${packages[@]}"; do
  found=
  for name in ${package//|/ }; do
    if is_installed "$name"; then found=$name; fi
  done
  [ -n "$found" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi

fail() {
  echo "packages: $1; missing:" >&2
  printf '  %s\n' "${missing[@]}" >&2
  echo "Install them, or, if you have them from elsewhere, build without this step:" >&2
  echo "  cmake --preset dev && cmake --build --preset dev && ctest --preset dev" >&2
  exit 1
}

command -v apt-get >/dev/null || fail "apt-get is not there"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "installing needs root or sudo"
  as_root=(sudo)
fi
echo "packages: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q || fail "apt-get update failed"
names=()
for package in "${missing[@]}"; do
  chosen=${package%%|*}
  for name in ${package//|/ }; do
    if apt-cache show "$name" >/dev/null 2>&1; then chosen=$name; break; fi
  done
  names+=("$chosen")
done
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -q -y --no-install-recommends -- "${names[@]}" || fail "apt-get install failed"
