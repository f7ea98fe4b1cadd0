#!/usr/bin/env bash
# Usage: tools/gather_packages.sh ARCHITECTURE FOLDER    for instance: amd64 build/packages-amd64
#        tools/gather_packages.sh --unpack FOLDER
#
# For building on a machine that reaches no package server. Downloads the libraries of
# tools/packages.txt for ARCHITECTURE (Debian's name for it), from the servers this machine uses, to
# FOLDER/debs, and unpacks them to FOLDER/usr. The system stays as it is: lists and downloads go to
# FOLDER, nothing is installed, root is not needed.
#
# Prints the environment to build in: eval "$(tools/gather_packages.sh ...)". Only FOLDER/debs has to
# travel, a tenth of the whole; there, --unpack makes the rest and prints the same. The compiler,
# CMake, Ninja, Python and the C and C++ libraries are that machine's own.
set -euo pipefail

usage() { sed -n '2,3s/^# *//p' "$0" >&2; exit 2; }
fail() { echo "gather_packages: $1" >&2; exit 1; }
[ $# -eq 2 ] || usage
tools=$(cd "$(dirname "$0")" && pwd)

# Prints the names of the libraries of tools/packages.txt, "a|b" for alternatives; not MPI, which can be done
# without and needs thirty more.
libraries() {
  sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^libopenmpi/d' "$tools/packages.txt" | grep -e '-dev\(|\|$\)'
}

# What the C and C++ libraries are made of: another system's must not get in the compiler's way. And
# sources that come with GoogleTest.
is_left_out() {
  case $1 in libc6* | libc-dev | libgcc* | libstdc++* | linux-libc-dev | googletest) return 0 ;; esac
  return 1
}

# An apt that knows ARCHITECTURE alone, and keeps all it knows in $1.
make_private_apt() {
  local state=$1 architecture=$2
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  : >"$state/status"  # nothing is installed
  cat >"$state/apt.conf" <<END
#clear APT::Architectures;
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "";
Dir::State "$state";
Dir::State::status "$state/status";
Dir::Cache "$state/cache";
END
  export APT_CONFIG=$state/apt.conf
  apt-get -q update || fail "apt-get update failed for architecture $architecture"
}

depends_of() {
  apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "$1" | sed -n 's/^ *|\{0,1\}\(Pre\)\{0,1\}Depends: \([^<].*\)/\2/p'
}

# Sets `packages` to the libraries and what they need.
choose_packages() {
  local library name next
  packages=()
  local -A seen=()
  local -a waiting=()
  for library in $(libraries); do
    for name in ${library//|/ }; do
      if apt-cache show "$name" >/dev/null 2>&1; then waiting+=("$name"); continue 2; fi
    done
    fail "no package '${library//|/\' or \'}' for this architecture"
  done
  while [ ${#waiting[@]} -gt 0 ]; do
    name=${waiting[0]}
    waiting=("${waiting[@]:1}")
    if [ -n "${seen[$name]:-}" ] || is_left_out "$name"; then continue; fi
    seen[$name]=1
    packages+=("$name")
    for next in $(depends_of "$name"); do waiting+=("$next"); done
  done
}

unpack() {
  local folder=$1 deb
  compgen -G "$folder/debs/*.deb" >/dev/null || fail "$folder/debs holds no packages"
  command -v dpkg-deb >/dev/null || fail "dpkg-deb is not there"
  for deb in "$folder"/debs/*.deb; do dpkg-deb -x "$deb" "$folder"; done
}

# $1: the folder, $2: its name for the architecture, as in /usr/lib/x86_64-linux-gnu. CMake finds the
# rest by itself, and writes into programs where their libraries are; but not what OpenSSL's headers
# include from the folder of the architecture.
print_environment() {
  local folder
  folder=$(printf %q "$1")
  cat <<END
export QUIRE_PACKAGES=$folder
export CMAKE_PREFIX_PATH=$folder/usr
export CPLUS_INCLUDE_PATH=$folder/usr/include/$2
END
}

# The one folder of shared libraries that was unpacked.
library_folder() {
  local folders=("$1"/usr/lib/*-linux-gnu*)
  [ ${#folders[@]} -eq 1 ] && [ -d "${folders[0]}" ] || fail "$1/usr/lib: expected one architecture"
  basename "${folders[0]}"
}

if [ "$1" = --unpack ]; then
  folder=$(cd "$2" 2>/dev/null && pwd) || fail "no folder '$2'"
  unpack "$folder"
  architecture=$(library_folder "$folder")  # on a line of its own: a failure in an argument is lost
  print_environment "$folder" "$architecture"
  exit 0
fi

case $1 in -*) usage ;; esac
command -v apt-get >/dev/null || fail "apt-get is not there"
[ ! -e "$2" ] || [ -z "$(ls -A -- "$2")" ] || fail "'$2' is there already and not empty"
mkdir -p -- "$2/debs"
folder=$(cd "$2" && pwd)
make_private_apt "$folder/apt" "$1" >&2
choose_packages
(cd "$folder/debs" && apt-get -q download "${packages[@]}" >&2) || fail "a download failed"
rm -rf "$folder/apt"
unpack "$folder"
echo "gathered ${#packages[@]} packages for $1 in $folder:" \
  "$(du -sh "$folder/debs" | cut -f1) in debs/, $(du -sh "$folder" | cut -f1) in all" >&2
architecture=$(library_folder "$folder")
print_environment "$folder" "$architecture"
